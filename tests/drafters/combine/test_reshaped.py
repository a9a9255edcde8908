"""A draft may be sharper or flatter than the request asks for; what is emitted stays the target's."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.sampling.draft_sampling import DraftSampling
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.reshaped import Reshaped, reshaped
from draftwood.drafters.draft_model import DraftModel
from draftwood.errors import OptionError
from draftwood.testing.contracts import Always, check_drafter, toy_round
from draftwood.testing.exact import acceptance, distance, first_token, joint_error, leaves, probs_of
from draftwood.testing.runs import make_engine, serve
from draftwood.testing.table_drafter import TableDrafter
from draftwood.testing.table_model import TableModel, context_free, near, random_probs
from draftwood.testing.tiny import tiny_runner
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


def sharper(drafter: Any, temperature: float = 0.6) -> Reshaped:
    return Reshaped(drafter, DraftSampling(temperature=temperature))


def recipe(drafter: Any, policy: Any, verifier: Any, depth: int = 2, nodes: int = 4) -> Any:
    return lambda: Recipe(drafter=drafter, policy=policy, verifier=verifier, controller=Always(depth, nodes))


def powered(probs: tuple[float, ...], temperature: float) -> list[float]:
    raised = [x ** (1 / temperature) for x in probs]
    return [x / sum(raised) for x in raised]


def test_the_contract_of_drafters_holds() -> None:
    for policy in (Chain(), Static((2, 2)), BestFirst(2)):
        check_drafter(sharper(TableDrafter(random_probs(5, 1))), policy, 5)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.5])
@pytest.mark.parametrize(("policy", "verifier"), PAIRS, ids=lambda part: type(part).__name__)
def test_the_distribution_is_the_targets_however_the_draft_is_shaped(
    policy: Any, verifier: Any, temperature: float
) -> None:
    probs = random_probs(3, 3)
    drafter = sharper(TableDrafter(near(probs, 3, 4, 0.5)), temperature)
    found = leaves(TableModel(3, probs), recipe(drafter, policy, verifier))
    assert joint_error(found, probs, 3, 3) < 1e-12


def test_acceptance_is_that_of_the_sharper_distribution() -> None:
    found = leaves(
        TableModel(4, context_free(P)), recipe(sharper(TableDrafter(context_free(Q))), Chain(), Rejection(), 1)
    )
    assert acceptance(found) == pytest.approx(sum(map(min, P, powered(Q, 0.6))))
    assert first_token(found, 4) == pytest.approx(P)


@pytest.mark.parametrize(
    ("policy", "verifier"), [(Chain(), Rejection()), (Chain(), Block()), (Static((2,)), Traversal())]
)
def test_control_draws_from_a_sharper_distribution_that_is_not_told_fail(policy: Any, verifier: Any) -> None:
    class Silent(Reshaped):
        def propose(self, *given: Any) -> Proposal:
            proposal = Reshaped.propose(self, *given)
            assert proposal.q is not None
            asked = torch.tensor(Q, dtype=torch.float64).expand(proposal.q.num_distributions, -1)
            return replace(proposal, q=DraftProbs(asked))

    drafter = Silent(TableDrafter(context_free(Q)), DraftSampling(temperature=0.6))
    found = leaves(TableModel(4, context_free(P)), recipe(drafter, policy, verifier, 1))
    assert distance(first_token(found, 4), P) > 0.02


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.7, "top_k": 2}, {"top_p": 0.6}, {"repetition_penalty": 1.8}, {"logit_bias": {1: 1.5, 0: -0.5}}],
    ids=lambda o: "+".join(o),
)
def test_options_of_the_request_stay_exact(options: dict[str, Any]) -> None:
    probs, params = random_probs(3, 5), SamplingParams(**{"temperature": 1.0, **options})
    drafter = sharper(TableDrafter(near(probs, 3, 6, 0.5)))
    fast, slow = (
        probs_of(leaves(TableModel(3, probs), made, tokens=3, params=params))
        for made in (recipe(drafter, Chain(), Rejection()), recipe(drafter, Chain(), Match(), 0, 0))
    )
    assert max(abs(fast.get(z, 0) - slow.get(z, 0)) for z in {*fast, *slow}) < 1e-12


def test_greedy_sequences_keep_their_draft_beside_sampled_ones() -> None:
    target = tiny_runner(1)
    runs: list[Any] = []
    for drafter in (DraftModel(target.first_layers(3)), sharper(DraftModel(target.first_layers(3)), 0.2)):
        made = Recipe(drafter=drafter, policy=BestFirst(2), verifier=Match(), controller=Fixed(2, 6))
        params = [SamplingParams(temperature=t, seed=1, max_tokens=20) for t in (0.0, 1.0)]
        greedy, sampled = serve(make_engine(target, made), [[1, 2, 3], [4]], params)
        assert greedy.stats.disabled is None and sampled.stats.disabled is None
        runs.append((greedy.output, sampled.output, greedy.stats.accepted))
    assert runs[0] == runs[1]


def test_shapes_inside_shapes_multiply() -> None:
    seen: list[DraftSampling] = []

    class Look(TableDrafter):
        def propose(self, state: Any, rnd: Round, *rest: Any) -> Proposal:
            seen.append(rnd.take([0]).draft_sampling)
            return TableDrafter.propose(self, state, rnd, *rest)

    rnd = toy_round([[1]], 4)
    sharper(sharper(Look(context_free(Q)), 0.5), 0.5).propose(
        None, rnd, Proposal.roots(rnd.roots()), Limit.of([1], [1]), Chain()
    )
    assert seen[0].temperature == pytest.approx(0.25) and rnd.draft_sampling.temperature == 1


def test_a_factor_of_one_wraps_nothing_and_wild_ones_are_refused() -> None:
    drafter = TableDrafter(context_free(Q))
    assert reshaped(drafter, 1.0) is drafter and isinstance(reshaped(drafter, 0.5), Reshaped)
    for wrong in (0.0, -1.0, 1e6, float("nan")):
        with pytest.raises(OptionError, match="draft's temperature"):
            reshaped(drafter, wrong)
