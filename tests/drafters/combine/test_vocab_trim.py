"""A trimmed drafter guesses among some tokens; what is emitted stays the target's."""

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
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.vocab_trim import VocabTrim
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.drafters.target_roots import TargetRoots
from draftwood.errors import CompositionError, OptionError
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.contracts import Always, check_drafter, toy_round
from draftwood.testing.exact import acceptance, distance, first_token, joint_error, leaves, probs_of
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, context_free, near, random_probs
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

P, Q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)
KEEP = torch.tensor([0, 2])


def recipe(drafter: Any, policy: Any, verifier: Any, depth: int = 2, nodes: int = 4) -> Any:
    return lambda: Recipe(drafter=drafter, policy=policy, verifier=verifier, controller=Always(depth, nodes))


def test_the_contract_of_drafters_holds() -> None:
    for policy in (Chain(), Static((2, 2)), BestFirst(2)):
        check_drafter(VocabTrim(TableDrafter(random_probs(5, 1)), torch.tensor([0, 3, 4])), policy, 5)


@pytest.mark.parametrize(
    "policy", [Chain(), Static((2, 1)), Static((2, 1), Draw.IID)], ids=["chain", "distinct", "iid"]
)
def test_the_distribution_is_the_targets_although_the_draft_has_no_mass_outside(policy: Any) -> None:
    probs = random_probs(4, 3)
    drafter = VocabTrim(TableDrafter(near(probs, 4, 4, 0.5)), KEEP)
    found = leaves(TableModel(4, probs), recipe(drafter, policy, Rejection()))
    assert joint_error(found, probs, 4, 3) < 1e-12


def test_acceptance_is_that_of_the_draft_distribution_on_the_kept_tokens() -> None:
    found = leaves(
        TableModel(4, context_free(P)), recipe(VocabTrim(TableDrafter(context_free(Q)), KEEP), Chain(), Rejection(), 1)
    )
    assert acceptance(found) == pytest.approx(min(0.4, 0.25) + min(0.2, 0.75))
    assert first_token(found, 4) == pytest.approx(P), "tokens outside are emitted as often as ever"


def test_control_a_distribution_that_pretends_to_cover_all_tokens_fails() -> None:
    class Pretending(VocabTrim):
        def propose(self, *args: Any) -> Proposal:
            proposal = VocabTrim.propose(self, *args)
            assert proposal.q is not None
            whole = torch.tensor(Q, dtype=torch.float64).expand(proposal.q.num_distributions, -1)
            return replace(proposal, q=DraftProbs(whole))

    drafter = Pretending(TableDrafter(context_free(Q)), KEEP)
    found = leaves(TableModel(4, context_free(P)), recipe(drafter, Chain(), Rejection(), 1))
    assert distance(first_token(found, 4), P) > 0.05


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.7, "top_k": 2}, {"top_p": 0.6}, {"repetition_penalty": 1.8}, {"logit_bias": {1: 1.5, 0: -0.5}}],
    ids=lambda o: "+".join(o),
)
def test_options_are_exact_over_a_trimmed_distribution(options: dict[str, Any]) -> None:
    probs, params = random_probs(3, 5), SamplingParams(**{"temperature": 1.0, **options})
    drafter = VocabTrim(TableDrafter(near(probs, 3, 6, 0.5)), KEEP)
    fast, slow = (
        probs_of(leaves(TableModel(3, probs), made, tokens=3, params=params))
        for made in (recipe(drafter, Chain(), Rejection()), recipe(drafter, Chain(), Match(), 0, 0))
    )
    assert max(abs(fast.get(z, 0) - slow.get(z, 0)) for z in {*fast, *slow}) < 1e-12


@pytest.mark.parametrize("keep", [None, torch.arange(61)], ids=["none", "all"])
def test_keeping_every_token_changes_nothing(keep: Any) -> None:
    target = tiny_runner(1)
    params = [SamplingParams(temperature=t, seed=i, max_tokens=20) for i, t in enumerate((0.0, 1.0, 0.7))]
    runs: list[Any] = []
    for drafter in (DraftModel(target.first_layers(3)), VocabTrim(DraftModel(target.first_layers(3)), keep)):
        made = Recipe(drafter=drafter, policy=Static((2, 2)), verifier=Rejection(), controller=Fixed(2, 6))
        got = serve(make_engine(target, made), [[1, 2, 3], [4], [5, 6]], params)
        assert all(r.stats.disabled is None for r in got)
        runs.append([(r.output, r.stats.target_passes) for r in got])
    assert runs[0] == runs[1]


def test_a_drafting_model_multiplies_the_kept_rows_of_its_head_alone() -> None:
    draft, keep = tiny_runner(1), torch.tensor([3, 7, 20, 41, 60])
    asked: list[int] = []

    class Watched(CpuRunner):
        def execute(self, x: Any, **plan: Any) -> Any:
            asked.append(len(x.want))
            return CpuRunner.execute(self, x, **plan)

    rnd, limit = toy_round([[1, 2, 3], [4]], 61), Limit.of([2, 2], [6, 6])
    distributions: list[DraftProbs] = []
    for drafter in (DraftModel(draft), VocabTrim(DraftModel(Watched(draft.model)), keep)):
        proposal = drafter.propose(drafter.init(2), rnd, Proposal.roots(rnd.roots()), limit, Static((2, 2)))
        assert proposal.fault is None and proposal.q is not None
        distributions.append(proposal.q)
    whole, trimmed = distributions
    assert trimmed.ids is keep and set(asked) == {0}
    want = whole.prob[:2, keep] / whole.prob[:2, keep].sum(1, keepdim=True)
    assert torch.allclose(trimmed.prob[:2], want, atol=1e-12)


def test_a_token_outside_can_still_be_emitted() -> None:
    target = tiny_runner(1)
    plain = Recipe(drafter=DraftModel(target), policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(0))
    params = [SamplingParams(temperature=t, seed=i, max_tokens=20) for i, t in enumerate((0.0, 1.0))]
    want = [r.output for r in serve(make_engine(target, plain), [[1, 2], [3]], params)]
    keep = torch.tensor(sorted({*want[0][::2], *want[1][::2]}))
    assert {*want[0], *want[1]} - {*keep.tolist()}
    for policy in (Chain(Draw.GIVEN), BestFirst(3)):
        made = Recipe(
            drafter=VocabTrim(DraftModel(target), keep), policy=policy, verifier=Match(), controller=Fixed(3, 6)
        )
        got = serve(make_engine(target, made), [[1, 2], [3]], params)
        assert [r.output for r in got] == want and sum(r.stats.rounds_all for r in got)


def test_where_every_kept_token_is_banned_nothing_is_guessed_and_no_drafter_is_disabled() -> None:
    target = tiny_runner(1)
    drafter = VocabTrim(DraftModel(target), torch.tensor([1, 2, 3]))
    params = SamplingParams(temperature=1.0, seed=0, max_tokens=8, bad_words=((1,), (2,), (3,)))
    for policy, verifier in ((Chain(), Rejection()), (BestFirst(2), Match())):
        made = Recipe(drafter=drafter, policy=policy, verifier=verifier, controller=Fixed(2))
        (got,) = serve(make_engine(target, made), [[5, 6]], params)
        assert got.stats.disabled is None and len(got.output) == 8 and not {1, 2, 3} & {*got.output}


def test_trims_inside_trims_meet() -> None:
    seen: list[Any] = []

    class Look(TableDrafter):
        def propose(self, state: Any, rnd: Round, *rest: Any) -> Proposal:
            seen.append(rnd.columns)
            return TableDrafter.propose(self, state, rnd, *rest)

    inner: Any = Look(context_free(Q))
    drafter = VocabTrim(VocabTrim(inner, torch.tensor([1, 2, 3])), torch.tensor([0, 2, 3]))
    rnd = toy_round([[1]], 4)
    drafter.propose(None, rnd, Proposal.roots(rnd.roots()), Limit.of([1], [1]), Chain())
    assert seen[0].tolist() == [2, 3] and rnd.columns is None


def test_what_cannot_be_trimmed_is_refused() -> None:
    with pytest.raises(CompositionError, match=r"VocabTrim.*NGram"):
        VocabTrim(NGram(), KEEP)
    with pytest.raises(CompositionError, match=r"VocabTrim.*TargetRoots"):
        VocabTrim(TargetRoots(TableDrafter(context_free(Q))), KEEP)
    for wrong in ([], [2, 1], [1, 1]):
        with pytest.raises(OptionError, match="rise"):
            VocabTrim(TableDrafter(context_free(Q)), torch.tensor(wrong, dtype=torch.int64))
