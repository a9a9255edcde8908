"""A block of guesses takes one draft pass, never changes the text, and leaves nothing in the net's cache but the text."""

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from block_nets import AHEAD, trained
from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import FINAL, ForwardInput
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Verdict
from draftwood.drafters.combine.vocab_trim import VocabTrim
from draftwood.drafters.learners.blocks import BlockLearner
from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.make_drafter import block_drafter
from draftwood.drafters.nets.runners import block_runner
from draftwood.drafters.nets.runners.block_runner import BlockRunner
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.on_features.blocks import Blocks
from draftwood.drafters.on_features.feature_text import TextState
from draftwood.recipes import autoregressive
from draftwood.testing import exact
from draftwood.testing.contracts import Always
from draftwood.testing.host_reads import as_if_on_a_device
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.train.loop.teacher import Teacher
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.most_valuable_first import MostValuableFirst
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from own_layers import PROMPTS, TARGETS, int8, served

CHAIN, TREE = Chain(Draw.GIVEN), BestFirst(3)
SIZES: dict[Any, Fixed] = {CHAIN: Fixed(depth=3), TREE: Fixed(depth=3, nodes=8)}


@pytest.mark.parametrize("policy", SIZES, ids=["chain", "tree"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.slow
def test_the_text_is_that_of_plain_decoding(name: str, temperature: float, policy: TreePolicy) -> None:
    target = TARGETS[name]()
    with as_if_on_a_device() if name == "device" else nullcontext():
        done, seen = served(target, block_drafter(trained(name), target), temperature, policy, controller=SIZES[policy])
        plain, _ = served(target, None, temperature)
    assert {r.stats.disabled for r in done} == {None}
    assert [r.output for r in done] == [r.output for r in plain]
    print(name, temperature, policy, dict(seen.rounds))
    assert all(seen.rounds[each] for each in ("all", "some", "none")), seen.rounds


@dataclass(frozen=True, slots=True)
class Trusting(Match):
    """Twin: the first drafted token counts, whatever the target says."""

    def verify(self, proposal: Proposal, target: Any, rnd: Round) -> Verdict:
        right = Match.verify(self, proposal, target, rnd)
        if proposal.tree.num_nodes == 1:
            return right
        wrong = (right.count == 0) & proposal.tree.live[:, 1]
        first = torch.zeros_like(right.path)
        first[:, 1:] = -1
        first[:, 1] = 1
        return replace(
            right,
            path=torch.where(wrong[:, None], first, right.path),
            count=torch.where(wrong, 1, right.count),
            next_token=torch.where(wrong, target.best()[:, 1], right.next_token),
        )


@pytest.mark.slow
def test_control_a_rule_that_trusts_the_draft_changes_the_text() -> None:
    target = tiny_runner()
    done, _ = served(target, block_drafter(trained("float64"), target), 0.0, CHAIN, Trusting())
    assert [r.output for r in done] != [r.output for r in served(target, None, 0.0)[0]]


def test_also_where_requests_lose_their_slots_in_between() -> None:
    target = int8()
    done, seen = served(target, block_drafter(trained("int8"), target), 0.0, max_cache_tokens=60)
    assert [r.output for r in done] == [r.output for r in served(target, None, 0.0)[0]]
    assert sum(seen.rounds.values()) > 10 and sum(r.stats.preempted for r in done) > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.slow
def test_random_weights_leave_the_text_alone(temperature: float) -> None:
    target = tiny_runner()
    plain = [r.output for r in served(target, None, temperature)[0]]
    for policy in (CHAIN, TREE, Static((3, 2, 1), Draw.GIVEN), MostValuableFirst()):
        drafter = block_drafter(random_head("block", target, rows=30), target)
        done, seen = served(target, drafter, temperature, policy, controller=Fixed(depth=3, nodes=8))
        assert [r.output for r in done] == plain and seen.rounds["none"] and {r.stats.disabled for r in done} == {None}


@pytest.mark.slow
def test_options_along_a_path_leave_the_text_alone() -> None:
    target = tiny_runner()
    each = [
        SamplingParams(
            max_tokens=12, temperature=0.8, seed=i, repetition_penalty=1.5, logit_bias={2: 1.0, 4: -1.0}, min_tokens=5
        )
        for i in range(len(PROMPTS))
    ]
    texts: list[Any] = []
    for recipe in (recipe_of(target), autoregressive.build(target)):
        done = serve(make_engine(target, recipe, slots=8), PROMPTS, each)
        assert {r.stats.disabled for r in done} == {None}
        texts.append([r.output for r in done])
    assert texts[0] == texts[1]


def recipe_of(target: Any, policy: TreePolicy = TREE, rule: Any = None, depth: int = 3, nodes: int = 8) -> Recipe:
    drafter = block_drafter(random_head("block", target), target)
    return Recipe(drafter=drafter, policy=policy, verifier=rule or Match(), controller=Fixed(depth=depth, nodes=nodes))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("policy", [Chain(), Static((2, 1))], ids=["chain", "tree"])
def test_the_emitted_distribution_is_the_targets(policy: Any) -> None:
    """I2: every outcome of whole requests under rejection, against plain decoding."""
    target = tiny_runner(config=replace(CONFIG, vocab_size=3, num_layers=1))
    drafter = block_drafter(random_head("block", target, rows=2), target)
    plain = Recipe(drafter=Nothing(), policy=Chain(), verifier=Match(), controller=Always(0, 0))
    drafting = Recipe(drafter=drafter, policy=policy, verifier=Rejection(), controller=Always(2, 4))
    found = exact.leaves(target.model, lambda: drafting, tokens=4)
    assert max(leaf.accepted for leaf in found) == 2
    fast, slow = exact.probs_of(found), exact.probs_of(exact.leaves(target.model, lambda: plain, tokens=4))
    assert max(abs(fast.get(z, 0) - slow.get(z, 0)) for z in {*fast, *slow}) < 1e-12


# --- one pass a round


class Counted(BlockRunner):
    """Keeps what every pass was asked for and gave."""

    def __init__(self, *args: Any, passes: list[tuple[ForwardInput, Tensor]] | None = None) -> None:
        super().__init__(*args)
        self.passes: list[tuple[ForwardInput, Tensor]] = [] if passes is None else passes

    def open(self, slots: int, capacity: int) -> "Counted":
        real = super().open(slots, capacity)
        return Counted(self.net, self.target, self.ids, real.cache, passes=self.passes)

    def execute(self, x: ForwardInput, only: Tensor | None = None) -> tuple[Tensor, Tensor]:
        found = super().execute(x, only)
        self.passes.append((x, found[1]))
        return found


def counted(target: Any, name: str = "float64") -> Counted:
    return Counted(filled(trained(name)).to(target.info.dtype), target, None)


@pytest.mark.parametrize("policy", SIZES, ids=["chain", "tree"])
def test_a_round_takes_one_draft_pass_and_text_behind_the_prompt_none_of_its_own(policy: TreePolicy) -> None:
    target = tiny_runner()
    model = counted(target)
    ledger: list[tuple[int, int]] = []

    def watch(rnd: Round, outcome: Any, output: Any) -> None:
        ledger.append((outcome.proposal.tree.num_nodes, len(model.passes)))
        model.passes.clear()

    recipe = Recipe(drafter=Blocks(model), policy=policy, verifier=Match(), controller=SIZES[policy], watch=(watch,))
    (done,) = serve(make_engine(target, recipe, slots=1), [[1, 2, 3]], [SamplingParams(max_tokens=40)])
    drafted = [passes for nodes, passes in ledger if nodes > 1]
    assert done.stats.disabled is None and len(drafted) > 10
    assert set(drafted) == {1}
    assert sum(passes for nodes, passes in ledger if nodes == 1) <= 1  # the prompt's entries


# --- what a draft reads


@dataclass(frozen=True, slots=True, eq=False)
class Checked(Blocks):
    """Every distribution of a draft is compared with what training computes over the whole text."""

    compared: list[float] = field(default_factory=list[float])

    def propose(self, state: TextState, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        model: Any = self.model
        model.passes.clear()
        made = Blocks.propose(self, state, rnd, base, limit, policy)
        if model.passes:
            ((x, logits),) = model.passes
            slots = list(dict.fromkeys(x.to_host().slots))
            for slot, said in zip(slots, logits.view(len(slots), -1, logits.shape[-1]), strict=True):
                known = rnd.requests[rnd.host_slots.index(slot)].known
                right = said_in_training(model.net, model.target, known)[: len(said)]
                self.compared.append(float((said - right).abs().max()))
        return made


def said_in_training(net: Any, target: Any, known: list[int]) -> Tensor:
    """Logits of the block behind the last of these tokens."""
    ids = torch.tensor([known])
    on = torch.ones_like(ids, dtype=torch.bool)
    shown = Teacher(target).show(ids, on, on, frozenset({*net.config.taps, FINAL}), 0)
    learner = BlockLearner(net, torch.arange(CONFIG.vocab_size))
    y = learner.outputs(shown, torch.tensor([len(known) - 1]))
    return (net.read(y)[0, 1:] @ shown.rows(None).T).detach()


def compared(drafter: Checked, room: int | None = None) -> float:
    """The greatest difference in a run. `room`: entries of the target's cache, too few for all sequences."""
    policy = CHAIN if room else TREE
    done, _ = served(tiny_runner(), drafter, 1.0, policy, controller=SIZES[policy], max_cache_tokens=room)
    assert {r.stats.disabled for r in done} == {None} and len(drafter.compared) > 10
    assert bool(room) == (sum(r.stats.preempted for r in done) > 0)
    return max(drafter.compared)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("room", [None, 60], ids=["plenty", "preempted"])
def test_drafts_are_what_was_trained_over_the_text_so_far(room: int | None) -> None:
    """I3: entries are those of the text before the root, and of nothing else, whatever was drafted before."""
    assert compared(Checked(counted(tiny_runner())), room) < 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class KeepsBlocks(Checked):
    """Twin: the newest entry that stays is the one which the block made for its root."""

    def keep_pairs(self, state: TextState, counts: dict[int, int]) -> None:
        real = state.runner.commit

        def commit(slots: Any, entries: Any, tokens: Any) -> None:
            real(slots, [[*each[:-1], each[-1] + 1] if each else each for each in entries], tokens)

        state.runner.commit = commit  # type: ignore[method-assign]
        try:
            Blocks.keep_pairs(self, state, counts)
        finally:
            del state.runner.commit


@pytest.mark.slow
def test_control_entries_of_a_block_that_stay_are_found() -> None:
    assert compared(KeepsBlocks(counted(tiny_runner()))) > 1e-3


@pytest.mark.slow
def test_control_a_block_that_attends_to_its_past_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_runner, "opened", lambda segment, size: segment)
    assert compared(Checked(counted(tiny_runner()))) > 1e-3


def test_every_place_of_a_block_reads_every_other_and_text_reads_none() -> None:
    target = tiny_runner()
    net = counted(target).net
    plain = said_in_training(net, target, [1, 2, 3, 4])
    with torch.no_grad():
        net.masks[AHEAD - 1] += 1.0
    changed = (said_in_training(net, target, [1, 2, 3, 4]) - plain).abs().amax(1)
    assert (changed > 1e-6).all()


# --- how it drafts


class Knowing(Counted):
    """Knows the text that the target will write: an oracle with the net's passes, for one sequence."""

    text: list[int]

    def open(self, slots: int, capacity: int) -> "Knowing":
        real = BlockRunner.open(self, slots, capacity)
        found = Knowing(self.net, self.target, self.ids, real.cache, passes=self.passes)
        found.text = self.text
        return found

    def execute(self, x: ForwardInput, only: Tensor | None = None) -> tuple[Tensor, Tensor]:
        a, logits = super().execute(x, only)
        if not len(x.want):
            return a, logits
        root = int(x.positions[-1]) - self.ahead
        for i, token in enumerate(self.text[root + 1 : root + 1 + len(logits)]):
            logits[i, token] = 1e4
        return a, logits


def test_an_oracle_has_all_of_its_drafts_accepted() -> None:
    """I6: place i of a block is the i-th token behind the root."""
    target, params = tiny_runner(), [SamplingParams(max_tokens=33)]
    (plain,) = serve(make_engine(target, autoregressive.build(target), slots=1), [[1, 2, 3]], params)
    model = Knowing(filled(trained("float64")).double(), target, None)
    model.text = [1, 2, 3, *plain.output]
    recipe = Recipe(drafter=Blocks(model), policy=CHAIN, verifier=Match(), controller=Fixed(depth=AHEAD))
    (done,) = serve(make_engine(target, recipe, slots=1), [[1, 2, 3]], params)
    assert done.output == plain.output
    assert done.stats.target_passes == 1 + 32 / (AHEAD + 1)


def test_a_tree_is_no_deeper_than_a_block_and_holds_the_tokens_asked_for() -> None:
    target = tiny_runner()
    for policy in (CHAIN, Chain(), BestFirst(2), Static((1,) * 6), Static((2, 2))):
        keep = torch.arange(0, CONFIG.vocab_size, 3)
        drafter = VocabTrim(block_drafter(random_head("block", target), target), keep)
        trees: list[Any] = []
        recipe = Recipe(
            drafter=drafter,
            policy=policy,
            verifier=Rejection() if policy.draw is not Draw.GIVEN else Match(),
            controller=Fixed(depth=6, nodes=12),
            watch=(lambda rnd, outcome, output, trees=trees: trees.append(outcome.proposal.tree),),
        )
        done = serve(make_engine(target, recipe, slots=4), PROMPTS[:6], SamplingParams(max_tokens=8, temperature=1.0))
        assert {r.stats.disabled for r in done} == {None}
        deepest = max(int((tree.depths() * tree.live).max()) for tree in trees)
        assert deepest == min(AHEAD, 2 if policy == Static((2, 2)) else 6)
        drafted = {int(t) for tree in trees for t in tree.tokens[:, 1:][tree.live[:, 1:]]}
        assert drafted and drafted <= set(keep.tolist())


def test_a_draft_at_the_end_of_the_context_is_shorter() -> None:
    target = int8()
    texts: list[list[list[int]]] = []
    recipe = Recipe(
        drafter=block_drafter(trained("int8"), target), policy=CHAIN, verifier=Match(), controller=Fixed(depth=5)
    )
    for each in (recipe, autoregressive.build(target)):
        engine = make_engine(target, each, slots=2, capacity=64)
        done = serve(engine, PROMPTS[:5], [SamplingParams(max_tokens=500)] * 5)
        assert {r.stats.disabled for r in done} == {None} and {r.finish_reason for r in done} == {"length"}
        texts.append([r.output for r in done])
    assert texts[0] == texts[1]
