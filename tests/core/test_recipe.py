"""What a recipe adds to its parts: a temperature of its draws, and a tree for greedy rounds. The text stays the target's."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Loop, Recipe
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.errors import CompositionError
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.contracts import Always, toy_round
from draftwood.testing.exact import acceptance, distance, first_token, joint_error, leaves, probs_of
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, context_free, near, random_probs
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static
from draftwood.trees.stochastic_beam import StochasticBeam
from draftwood.verifiers.block import Block
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from draftwood.verifiers.transport import Transport
from draftwood.verifiers.traversal import Traversal

P, Q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)
PAIRS: list[Any] = [
    (Chain(), Rejection()),
    (Chain(), Block()),
    (Static((2, 1)), Rejection()),
    (Static((2, 1)), Traversal()),
    (StochasticBeam(2), Traversal()),
    (Static((2, 1), Draw.IID), Transport()),
    (Paths(2), Traversal()),
    (BestFirst(2), Match()),
]


def recipe(
    drafter: Any, policy: Any, verifier: Any, depth: int = 2, nodes: int = 4, temperature: float = 0.6, **more: Any
) -> Any:
    parts: dict[str, Any] = {"drafter": drafter, "policy": policy, "verifier": verifier, **more}
    return lambda: Recipe(**parts, controller=Always(depth, nodes), draft_temperature=temperature)


def powered(probs: tuple[float, ...], temperature: float) -> list[float]:
    raised = [x ** (1 / temperature) for x in probs]
    return [x / sum(raised) for x in raised]


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.5])
@pytest.mark.parametrize(("policy", "verifier"), PAIRS, ids=lambda part: type(part).__name__)
def test_the_distribution_is_the_targets_however_the_draft_is_shaped(
    policy: Any, verifier: Any, temperature: float
) -> None:
    probs = random_probs(3, 3)
    drafter = TableDrafter(near(probs, 3, 4, 0.5))
    found = leaves(TableModel(3, probs), recipe(drafter, policy, verifier, temperature=temperature))
    assert joint_error(found, probs, 3, 3) < 1e-12


def test_acceptance_is_that_of_the_sharper_distribution() -> None:
    found = leaves(TableModel(4, context_free(P)), recipe(TableDrafter(context_free(Q)), Chain(), Rejection(), 1))
    assert acceptance(found) == pytest.approx(sum(map(min, P, powered(Q, 0.6))))
    assert first_token(found, 4) == pytest.approx(P)


@pytest.mark.parametrize(
    ("policy", "verifier"), [(Chain(), Rejection()), (Chain(), Block()), (Static((2,)), Traversal())]
)
def test_control_draws_from_a_sharper_distribution_that_is_not_told_fail(policy: Any, verifier: Any) -> None:
    class Silent(TableDrafter):
        def propose(self, *given: Any) -> Proposal:
            proposal = TableDrafter.propose(self, *given)
            assert proposal.q is not None
            asked = torch.tensor(Q, dtype=torch.float64).expand(proposal.q.num_distributions, -1)
            return replace(proposal, q=DraftProbs(asked))

    found = leaves(TableModel(4, context_free(P)), recipe(Silent(context_free(Q)), policy, verifier, 1))
    assert distance(first_token(found, 4), P) > 0.02


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.7, "top_k": 2}, {"top_p": 0.6}, {"repetition_penalty": 1.8}, {"logit_bias": {1: 1.5, 0: -0.5}}],
    ids=lambda o: "+".join(o),
)
def test_options_of_the_request_stay_exact(options: dict[str, Any]) -> None:
    probs, params = random_probs(3, 5), SamplingParams(**{"temperature": 1.0, **options})
    drafter = TableDrafter(near(probs, 3, 6, 0.5))
    fast, slow = (
        probs_of(leaves(TableModel(3, probs), made, tokens=3, params=params))
        for made in (recipe(drafter, Chain(), Rejection()), recipe(drafter, Chain(), Match(), 0, 0))
    )
    assert max(abs(fast.get(z, 0) - slow.get(z, 0)) for z in {*fast, *slow}) < 1e-12


def test_greedy_sequences_keep_their_draft_beside_sampled_ones() -> None:
    target = tiny_runner(1)
    params = [SamplingParams(temperature=t, seed=1, max_tokens=20) for t in (0.0, 1.0)]
    runs: list[Any] = []
    for temperature in (1.0, 0.2):
        made = recipe(DraftModel(target.first_layers(3)), BestFirst(2), Match(), 2, 6, temperature)()
        greedy, sampled = serve(make_engine(target, made), [[1, 2, 3], [4]], params)
        assert greedy.stats.disabled is None and sampled.stats.disabled is None
        runs.append((greedy.output, sampled.output, greedy.stats.accepted))
    assert runs[0] == runs[1]


def test_factors_inside_factors_multiply_and_stay_with_parts_of_a_round() -> None:
    rnd = toy_round([[1], [2]], 4)
    assert rnd.tempered(0.5).tempered(0.5).take([1]).draft_temperature == pytest.approx(0.25)
    assert rnd.tempered(1.0) is rnd and rnd.draft_temperature == 1


@pytest.mark.parametrize("wrong", [0.0, -1.0, 1e6, float("nan")])
def test_wild_factors_are_refused(wrong: float) -> None:
    with pytest.raises(CompositionError, match="draft_temperature"):
        recipe(TableDrafter(context_free(Q)), Chain(), Rejection(), temperature=wrong)()


class Seen(TableDrafter):
    """Remembers which policies it was given."""

    def __init__(self, probs: Any) -> None:
        super().__init__(probs)
        object.__setattr__(self, "names", [])

    __slots__ = ("names",)

    def propose(self, state: Any, rnd: Any, base: Any, limit: Any, policy: Any) -> Proposal:
        self.names.append((type(policy).__name__, rnd.batch))  # type: ignore[attr-defined]
        return super().propose(state, rnd, base, limit, policy)


def test_greedy_rounds_have_a_tree_of_their_own_and_every_text_stays() -> None:
    probs = random_probs(5, 2)
    seen: Any = Seen(near(probs, 5, 4, 0.3))
    params = [SamplingParams(temperature=t, seed=3, max_tokens=12) for t in (0.0, 1.0)]
    plain = serve(
        make_engine(CpuRunner(TableModel(5, probs)), recipe(seen, Chain(), Block(), 0, 0)()), [[1], [2]], params
    )
    made = recipe(seen, Chain(), Block(), 3, 6, greedy_policy=BestFirst(2))
    assert not seen.names
    for which in ([0], [1], [0, 1]):
        got = serve(
            make_engine(CpuRunner(TableModel(5, probs)), made()),
            [[[1], [2]][i] for i in which],
            [params[i] for i in which],
        )
        assert all(r.stats.disabled is None for r in got)
        if which[0] == 0:
            assert got[0].output == plain[0].output
    alone, sampled, both = ({name for name, batch in part} for part in _parts(seen.names))
    assert alone == {"BestFirst"} and sampled == {"Chain"} and both == {"Chain"}


def _parts(names: list[tuple[str, int]]) -> tuple[list[Any], list[Any], list[Any]]:
    """Calls for the greedy request alone, for the sampled one, and for both."""
    first = next(i for i, (name, _) in enumerate(names) if name == "Chain")
    pair = next(i for i, (_, batch) in enumerate(names) if batch == 2)
    last = max(i for i, (_, batch) in enumerate(names) if batch == 2)
    return names[:first], names[first:pair], names[pair : last + 1]


def test_a_tree_of_greedy_rounds_leaves_sampled_ones_exact() -> None:
    probs = random_probs(3, 3)
    made = recipe(TableDrafter(near(probs, 3, 4, 0.5)), Chain(), Block(), greedy_policy=BestFirst(2))
    assert joint_error(leaves(TableModel(3, probs), made), probs, 3, 3) < 1e-12


def test_a_tree_of_greedy_rounds_must_fit_the_drafter_and_the_loop() -> None:
    drafter, target = NGram(), tiny_runner(1)
    with pytest.raises(CompositionError, match=r"Static wants distinct draws, NGram supplies given"):
        Recipe(
            drafter=drafter,
            policy=BestFirst(2),
            verifier=Match(),
            controller=Fixed(2),
            greedy_policy=Static((2,)),
        ).check(target)
    with pytest.raises(CompositionError, match="one policy must grow all of them"):
        recipe(
            TableDrafter(context_free(Q)), Chain(), Block(), greedy_policy=BestFirst(2), loop=Loop.OVERLAPPED
        )().check(target)
