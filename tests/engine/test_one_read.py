"""One read a round: on a device the host reads the verdict and nothing else, and the
texts are those of the processor token for token."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from device_runs import Ran, ran
from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.proposal_checks import REASONS
from draftwood.core.protocols import TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict
from draftwood.recipes import autoregressive
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.oracle_drafter import NoisyOracle, Replay
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match

GREEDY: dict[str, Any] = {"temperature": 0.0}
WHOLE: dict[str, Any] = {"temperature": 1.0}
CUT: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9}
TOKENS = 6
FIRST = "speculative_sampling:draft=first:3"
NAMES = {
    "autoregressive": "autoregressive",
    "prompt_lookup": "prompt_lookup",
    "suffix_decoding": "suffix_decoding:nodes=16",
    "draft model, rejection": "fast_draft:weights={language}",
    "draft model, match": "fast_draft:weights={language}:verifier=match",
    "draft model with exits, match": "s2d:weights={nested}:size=paper:depth=2",
    "feature chain, match": "eagle3:weights={eagle3}:depth=3:beam=1:nodes=3",
    "feature tree, match": "eagle3:weights={eagle3}:depth=3:nodes=6",
    "feature chain, rejection": "speculative_sampling:inner=eagle3:weights={eagle3}",
    "feature tree, rejection": "mcsd:inner=eagle3:weights={eagle3}",
    "predicted length, match": f"ada_eagle:weights={{length}}:size=paper:depth=3:inner={FIRST}",
    "predicted length of a feature chain": "ada_eagle:weights={length}:size=paper:depth=3:inner=eagle3:weights={eagle3}",
    "predicted length while sure": f"ada_eagle:weights={{length}}:size=paper:depth=4:ddd=0.01:inner={FIRST}",
    "risk of a rejection": f"specdec_pp:weights={{acceptance}}:size=paper:depth=4:threshold=0.5:inner={FIRST}",
    "first layers, rejection": "speculative_sampling:draft=first:3",
    "first layers, match": "speculative_sampling:draft=first:3:verifier=match",
}


@cache
def targets() -> tuple[CpuRunner, CudaRunner]:
    """One model on both paths."""
    model = tiny_decoder(2)
    return CpuRunner(model), CudaRunner(model)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("heads")
    kinds = ("eagle3", "language", "nested", "length", "acceptance")
    return {kind: write_head(folder / f"{kind}.safetensors", random_head(kind, targets()[0])) for kind in kinds}


def prompts(batch: int) -> list[list[int]]:
    """Texts that repeat themselves, so that copies of them are guesses worth something."""
    return [[1, 2, 3, 1, 2, 4 + i % 5, 1, 2] for i in range(batch)]


def params(batch: int, tokens: int = TOKENS, **options: Any) -> list[SamplingParams]:
    return [SamplingParams(seed=i, max_tokens=tokens, **options) for i in range(batch)]


def both(
    build: Callable[[Any], Recipe],
    texts: list[list[int]],
    options: list[SamplingParams],
    same_drafts: bool = True,
    **more: Any,
) -> Ran:
    """The run on the device path, after its texts were found to be those of the processor, and its drafts too."""
    plain, device = (ran(target, build, texts, options, **more) for target in targets())
    assert device.texts == plain.texts
    assert device.accepted == plain.accepted or not same_drafts
    assert device.disabled == plain.disabled
    return device


@pytest.mark.one_in(17)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("batch", "options"), [(1, GREEDY), (1, WHOLE), (8, GREEDY), (8, WHOLE), (8, CUT)], ids=str)
def test_every_round_reads_once_and_the_text_is_that_of_the_processor(
    name: str, batch: int, options: dict[str, Any], heads: dict[str, Path]
) -> None:
    # What has learned nothing is right by chance alone: sampled texts are given the rounds in which that happens.
    each = params(batch, 9 if batch == 8 and options is WHOLE else TOKENS, **options)
    found = both(lambda target: recipes.build(NAMES[name].format(**heads), target), prompts(batch), each)
    assert found.read_once(), found.by_round()
    assert found.disabled == {None}
    every, some, none = found.accepted
    if name == "autoregressive":
        assert every + some + none == 0
    elif batch == 8:
        assert none > 0, "and some drafts were wrong"
        assert every + some > 0 or options is not WHOLE, "and some were right"
    if batch == 8 and "first" in name:
        assert min(every, some, none) > 0


def given(drafter: Any, policy: TreePolicy | None = None, nodes: int = 3) -> Recipe:
    """A recipe of given drafts, three levels deep."""
    policy = Chain(draw=Draw.GIVEN) if policy is None else policy
    return Recipe(drafter=drafter, policy=policy, verifier=Match(), controller=Fixed(depth=3, nodes=nodes))


def known_answers(texts: list[list[int]], options: list[SamplingParams]) -> dict[tuple[int, ...], list[int]]:
    plain = ran(targets()[0], autoregressive.build, texts, options)
    return {tuple(prompt): text for prompt, text in zip(texts, plain.texts, strict=True)}


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("batch", "options"), [(1, GREEDY), (1, WHOLE), (5, GREEDY), (5, CUT)], ids=str)
def test_drafts_that_are_mostly_right_are_read_once_too(batch: int, options: dict[str, Any]) -> None:
    """Commits move entries, whole drafts are accepted, and the answer is the plain one."""
    texts, each = prompts(batch), params(batch, 24, **options)
    answers = known_answers(texts, each)
    tree = given(NoisyOracle(answers, CONFIG.vocab_size), Static((2, 2, 2), draw=Draw.GIVEN), 6)
    for recipe in (tree, given(Replay(answers, CONFIG.vocab_size, spoil=7))):
        found = both(lambda _, made=recipe: made, texts, each)
        assert found.read_once(), found.by_round()
        assert found.texts == [answers[tuple(text)] for text in texts]
        assert min(found.accepted if batch > 1 else found.accepted[::2]) > 0, found.accepted


# --- the twins: every read of a number is counted


@dataclass(frozen=True, slots=True)
class Peeking(Match):
    """A rule that looks at one number of the target."""

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        assert int(target.best()[0, 0]) >= 0
        return Match.verify(self, proposal, target, rnd)


class PeekingReplay(Replay):
    """A drafter that looks at the root."""

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        assert base.tree.tokens[0].tolist()[0] >= 0
        return Replay.propose(self, state, rnd, base, limit, policy)


@pytest.mark.parametrize("part", ["verifier", "drafter"])
def test_a_part_that_looks_at_a_number_is_counted_as_a_second_read(part: str) -> None:
    texts, each = prompts(2), params(2, **WHOLE)
    answers = known_answers(texts, each)
    recipe = given(Replay(answers, CONFIG.vocab_size))
    spoiled = {"verifier": Peeking(), "drafter": PeekingReplay(answers, CONFIG.vocab_size)}[part]
    assert both(lambda _: recipe, texts, each).read_once()
    found = both(lambda _: replace(recipe, **{part: spoiled}), texts, each)
    assert not found.read_once()
    drafted = [reads.total for reads in found.reads][:-1]  # in the last round there may be nothing left to draft
    assert set(drafted) == {2}, found.by_round()


# --- whatever else happens in the rounds


@pytest.mark.parametrize("name", ["feature tree, match", "feature tree, rejection", "first layers, rejection"])
@pytest.mark.slow
def test_requests_that_come_and_go_and_prompts_in_the_pass_cost_no_read(name: str, heads: dict[str, Path]) -> None:
    texts = [[1 + i, *range(8, 11 + 5 * i), 1, 2] for i in range(6)]
    options = [SamplingParams(seed=i, max_tokens=9, **(WHOLE, GREEDY, CUT)[i % 3]) for i in range(6)]
    found = both(
        lambda target: recipes.build(NAMES[name].format(**heads), target),
        texts,
        options,
        arrive={1: 2, 3: 4, 4: 5, 5: 6},
        cancel={0: 4, 2: 8},
        slots=4,
        chunk=5,
    )
    assert found.read_once(), found.by_round()
    assert any(ready and riding for ready, riding in found.decoding), "prompt chunks beside sequences that decode"
    assert any(not ready for ready, _ in found.decoding), "rounds of prompt chunks alone, which have no verdict"
    assert [r.finish_reason for r in found.requests].count("cancelled") == 2
    assert sum(found.accepted[:2]) > 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["feature tree, match", "first layers, rejection"])
def test_slots_that_fill_up_end_as_they_do_on_a_processor(name: str, heads: dict[str, Path]) -> None:
    """Trees at the end of a slot have nodes that no entry is left for. A device keeps the shape of its trees there and cuts
    them, so its last drafts may be others."""
    found = both(
        lambda target: recipes.build(NAMES[name].format(**heads), target),
        [[1, 2, 3] * n for n in (1, 3, 4)],
        params(3, 40, **WHOLE),
        same_drafts=False,
        capacity=19,
    )
    assert found.read_once(), found.by_round()
    assert {r.finish_reason for r in found.requests} == {"length"}
    assert all(r.num_known >= 19 for r in found.requests), "to the last entry"


def test_a_preempted_request_goes_on_where_it_was(heads: dict[str, Path]) -> None:
    found = both(
        lambda target: recipes.build(NAMES["first layers, match"], target),
        prompts(4),
        params(4, 16, **WHOLE),
        max_cache_tokens=64,
    )
    assert found.read_once(), found.by_round()
    assert sum(r.stats.preempted for r in found.requests) > 0 and sum(found.accepted[:2]) > 0


# --- drafters that break their contract


@dataclass(frozen=True, slots=True)
class Broken(Replay):
    """Later rounds of the second request are changed: (tree, whose they are) -> tree."""

    change: Callable[[Any, Any], Any] = lambda tree, late: tree

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        made = Replay.propose(self, state, rnd, base, limit, policy)
        late = [r.id == 1 and len(r.output) > 4 for r in rnd.requests]
        if made.tree.num_nodes < 3 or not any(late):
            return made
        return replace(made, tree=self.change(made.tree, torch.tensor(late)))


def out_of_range(tree: Any, late: Any) -> Any:
    return replace(tree, tokens=tree.tokens.index_put((late.long().argmax(), torch.tensor(1)), torch.tensor(4000)))


def behind_its_child(tree: Any, late: Any) -> Any:
    return replace(tree, parents=tree.parents.index_put((late.long().argmax(), torch.tensor(1)), torch.tensor(2)))


def no_score(tree: Any, late: Any) -> Any:
    spoiled = torch.tensor(float("nan"), dtype=tree.score.dtype)
    return replace(tree, score=tree.score.index_put((late.long().argmax(), torch.tensor(1)), spoiled))


def no_roots(tree: Any, late: Any) -> Any:
    return replace(tree, tokens=torch.where(late[:, None], (tree.tokens + 1) % CONFIG.vocab_size, tree.tokens))


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (out_of_range, "a token id is out of range"),
        (behind_its_child, "a parent does not stand before its child"),
        (no_score, "a score is not a number"),
        (no_roots, "the root is not the newest token"),
    ],
)
def test_an_invalid_draft_is_found_with_the_verdict_and_costs_its_request_the_drafter_alone(
    spoil: Callable[[Any, Any], Any], reason: str
) -> None:
    texts, each = prompts(3), params(3, 20, **WHOLE)
    answers = known_answers(texts, each)

    recipe = given(Broken(answers, CONFIG.vocab_size, change=spoil))
    found = both(lambda _: recipe, texts, each)
    assert reason in REASONS
    assert [r.stats.disabled for r in found.requests] == [None, reason, None]
    assert found.texts == [answers[tuple(text)] for text in texts]
    assert found.read_once(), found.by_round()
    first, broken, last = (r.stats.target_passes for r in found.requests)
    assert broken > max(first, last), "it went on one token at a time"


class Raising(Replay):
    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        raise ValueError("no draft today")


def test_a_drafter_that_raises_costs_its_requests_the_drafter_alone() -> None:
    texts, each = prompts(2), params(2, **GREEDY)
    recipe = given(Raising({}, CONFIG.vocab_size))
    found = both(lambda _: recipe, texts, each)
    assert found.disabled == {"propose: no draft today"} and found.read_once()
    assert found.texts == list(known_answers(texts, each).values())
