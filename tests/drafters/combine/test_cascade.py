"""Larger drafters begin a chain, smaller ones go on; the text is the target's, and the caches of all models follow it."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import ForwardInput
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.cascade import Cascade
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.retrieval.max_gram import MaxGram
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.drafters.text_cache import TextCache
from draftwood.errors import CompositionError, OptionError
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.contracts import check_drafter, toy_round
from draftwood.testing.parts.table_model import TableModel, random_probs
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

TARGET = tiny_runner(2)
LARGE, SMALL = TARGET.first_layers(3), TARGET.first_layers(2)
PROMPTS = [([1 + i, 2, 3, 4] * 6)[: 6 + 2 * i] for i in range(8)]
POLICY = Chain(Draw.GIVEN)
TWO, THREE = ((3, 4), (0, 4)), ((3, 3, 3), (0, 1, 4), (0, 0, 4))
V = TARGET.info.vocab_size


def cascade(counts: tuple[tuple[int, ...], ...] = TWO, lenience: float = 2.0, min_match: int = 1) -> Cascade:
    models = (DraftModel(LARGE), DraftModel(SMALL))[: len(counts) - 1]
    return Cascade(models, counts, lenience, MaxGram(min_match))


def alternating(tokens: Any) -> torch.Tensor:
    """Even and odd tokens take turns."""
    return torch.arange(V) % 2 == len(tokens) % 2


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "grammar": {"grammar": alternating, "temperature": 0.7},
    "cut": {"top_p": 0.8, "temperature": 0.7},
}


def served(drafter: Any, way: str, depth: int = 9, **options: Any) -> tuple[list[Request], Any]:
    recipe = Recipe(drafter=drafter, policy=POLICY, verifier=Match(), controller=Fixed(depth), **options)
    params = [SamplingParams(seed=i, **{"temperature": 1.0, "max_tokens": 14, **WAYS[way]}) for i in range(8)]
    engine = make_engine(TARGET, recipe, slots=8, chunk=12)
    return serve(engine, PROMPTS, params, eos=(7,)), engine


def texts(done: Sequence[Request]) -> list[list[int]]:
    return [r.output for r in done]


def test_the_contract_of_drafters_holds() -> None:
    model = DraftModel(CpuRunner(TableModel(5, random_probs(5, 1))))
    for depth in (3, 8):
        check_drafter(Cascade((model,), TWO, 4.0, MaxGram(1)), POLICY, 5, depth=depth)
        check_drafter(Cascade((model, model), THREE, 2.0), POLICY, 5, depth=depth)


@pytest.mark.parametrize(("way", "counts"), [*((way, TWO) for way in WAYS), ("greedy", THREE), ("sampled", THREE)])
@pytest.mark.slow
def test_the_text_is_that_of_plain_decoding_whatever_reviewers_tolerate(way: str, counts: Any) -> None:
    plain, _ = served(cascade(counts), way, depth=0)
    passes: set[int] = set()
    for lenience in (1.0, 1e9):
        done, _ = served(cascade(counts, lenience), way)
        assert texts(done) == texts(plain)
        assert {r.stats.disabled for r in done} == {None}
        rounds = [sum(getattr(r.stats, f"rounds_{what}") for r in done) for what in ("some", "none")]
        assert min(rounds) > 0, rounds
        passes.add(sum(r.stats.target_passes for r in done))
    assert len(passes) > 1, "lenience changes the speed"


# --- counts


class Recording(MaxGram):
    """A copier of zeros that notes what it is asked for."""

    __slots__ = ("asked",)

    def continued(self, state: Any, slot: int, request: Request, path: Any, count: int) -> Any:
        self.asked.append((len(list(path)), count))
        return [0] * count, [-0.1] * count


def drafted(counts: Any, lenience: float, depth: int = 30) -> tuple[Proposal, Any, list[tuple[int, int]]]:
    copier, model = Recording(), DraftModel(CpuRunner(TableModel(3, lambda text: [0.2, 0.5, 0.3])))
    asked: list[tuple[int, int]] = []
    object.__setattr__(copier, "asked", asked)
    drafter = Cascade((model,) * (len(counts) - 1), counts, lenience, copier)
    rnd, state = toy_round([[1]], 3, temperature=0.0), drafter.init(1)
    limit = Limit.of([depth], [depth])
    return drafter.propose(state, rnd, Proposal.roots(rnd.roots()), limit, POLICY), state, asked


def test_token_counts_are_those_of_the_matrix() -> None:
    made, state, asked = drafted(((3, 4), (0, 2)), lenience=1.0)
    assert asked == [(0, 2), (1, 2), (2, 2), (3, 4)], "two for each of three reviews, then four behind three"
    assert made.tree.tokens.tolist() == [[1, 1, 1, 1, 0, 0, 0, 0]]
    assert made.tree.source.tolist() == [[-1, 0, 0, 0, 1, 1, 1, 1]]
    assert made.passes == 3 and state.calls == [3, 4]


def test_a_reviewer_that_accepts_more_than_asked_keeps_it() -> None:
    made, state, asked = drafted(((3, 4), (0, 5)), lenience=6.0)
    assert asked == [(0, 5), (6, 1)], "one review of five and its own token, then one more"
    assert made.tree.tokens.tolist() == [[1, 0, 0, 0, 0, 0, 1, 0]] and state.calls == [1, 2]


def test_models_in_between_draft_for_larger_ones() -> None:
    made, state, asked = drafted(((2, 1, 3), (0, 1, 2), (0, 0, 2)), lenience=1.0)
    # The large model is drafted for by the small one (one token, by a review of two copies), then by two copies; it
    # accepts the small one's token, its own second is the same again. One review of it makes two tokens.
    assert asked == [(0, 2), (1, 2), (2, 2), (3, 3)]
    assert state.calls == [1, 2, 4] and made.passes == 3
    assert made.tree.source.tolist() == [[-1, 0, 0, 1, 2, 2, 2]]


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_draft_is_longer_than_the_limit(depth: int) -> None:
    for lenience in (1.0, 6.0):
        made, _, _ = drafted(((3, 4), (0, 5)), lenience, depth)
        assert made.tree.num_nodes == 1 + depth


# --- caches


def ledger(engines: list[Any], found: list[str]) -> Any:
    """A watcher: after every round each model's cache is the beginning of the text, as a fresh pass writes it. What it finds
    is noted, because an engine goes on without a watcher that fails."""

    def judged(model: CpuRunner, cache: Any, slot: int, request: Request) -> str:
        length = cache.length(slot)
        text, index = request.known[:length], torch.arange(length)
        if cache.text(slot) != text:
            return "tokens that are no text"
        fresh = model.open(1, 300)
        fresh.admit(0, [])
        fresh.execute(
            ForwardInput(torch.tensor(text, dtype=torch.int64), index * 0, index, index, index - 1, index[:0])
        )
        for spec in model.model.cache_specs:
            have, want = cache.store(spec.name)[slot, :, :length], fresh.cache.store(spec.name)[0, :, :length]
            if not torch.allclose(have, want, atol=1e-11):
                return "entries of another text"
        return "the text"

    def compare(rnd: Any, outcome: Any, output: Any) -> None:
        for model, state in zip((LARGE, SMALL), engines[0].drafter_state.drafters, strict=False):
            both = zip(rnd.slots.tolist(), rnd.requests, strict=True)
            found.extend(judged(model, state.runner.cache, slot, request) for slot, request in both)
            found.extend("staged entries" for _ in state.staged)

    return compare


def followed(drafter: Cascade) -> tuple[list[Request], list[str]]:
    engines, found = list[Any](), list[str]()
    watch = (ledger(engines, found),)
    recipe = Recipe(drafter=drafter, policy=POLICY, verifier=Match(), controller=Fixed(9), watch=watch)
    params = [SamplingParams(seed=i, temperature=float(i % 2), max_tokens=12) for i in range(3)]
    engines.append(make_engine(TARGET, recipe, slots=2, chunk=5))
    return serve(engines[0], PROMPTS[:3], params), found


@pytest.mark.parametrize("counts", [TWO, THREE], ids=["two", "three"])
def test_after_every_round_each_cache_ends_with_accepted_text(counts: Any) -> None:
    done, found = followed(cascade(counts, 4.0))
    assert set(found) == {"the text"} and len(found) > 10
    assert {r.stats.disabled for r in done} == {None}
    assert sum(r.stats.rounds_some + r.stats.rounds_all for r in done) > 3


def keep_all(self: TextCache, rnd: Any, outcome: Any) -> None:
    """Wrong on purpose: rejected tokens stay in the cache."""
    for slot in rnd.host_slots:
        children, chain = self.staged.pop(slot, ({}, 0))
        tokens = [token for _, token in children]
        done = self.runner.length(slot)
        text = self.owner[slot].known_from(done, done + chain) if chain else []
        self.runner.commit([slot], [[*range(chain), *children.values()]], [[*text, *tokens]])


def test_entries_of_rejected_tokens_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextCache, "keep", keep_all)
    assert "tokens that are no text" in followed(cascade(TWO, 1.0))[1]


# --- what it refuses, and other first drafters


def test_a_first_drafter_that_cannot_review_drafts_alone() -> None:
    plain, _ = served(cascade(), "greedy", depth=0)
    done, engine = served(Cascade((NGram(),), ((2, 4), (0, 0))), "greedy")
    assert texts(done) == texts(plain) and {r.stats.disabled for r in done} == {None}
    assert engine.drafter_state.calls == [0, engine.drafter_state.calls[1]] and engine.drafter_state.calls[1] > 0


def test_senseless_parts_are_refused() -> None:
    for counts in ((), ((1, 2),), ((1, 2), (0, -1)), ((1, 2, 3), (0, 1, 2))):
        with pytest.raises(OptionError, match=r"(?s)counts.*hint:"):
            Cascade((NGram(),), counts)
    with pytest.raises(OptionError, match="lenience"):
        cascade(lenience=0.5)
    with pytest.raises(CompositionError, match="NGram cannot review"):
        Cascade((DraftModel(LARGE), NGram()), THREE)
