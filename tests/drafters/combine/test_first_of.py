"""The first drafter that has something drafts, for each sequence by itself."""

from typing import Any

import pytest

from device_runs import ran
from draftwood.controllers.fixed import Fixed
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.drafters.combine.first_of import FirstOf
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.recipes import autoregressive
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.contracts import check_drafter, toy_round
from draftwood.testing.parts.oracle_drafter import NoisyOracle, Replay
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match
from fused_runs import MODEL, TEXTS, WAYS, V, params


def test_a_sequence_without_a_copy_goes_to_the_next_drafter() -> None:
    rnd = toy_round([[1, 2, 3, 1, 2], [5, 6, 7], [1, 4, 1]], V, temperature=0.0)
    drafter = FirstOf((NGram(), NGram(n_min=1, n_max=1)), Replay({}, V))
    limit = Limit.of([3] * 3, [3] * 3)
    tree = drafter.propose(drafter.init(3), rnd, Proposal.roots(rnd.roots()), limit, BestFirst()).tree
    assert [sorted(set(tree.source[b, tree.live[b]].tolist())) for b in range(3)] == [[-1, 0], [-1, 2], [-1, 1]]


@pytest.mark.parametrize(("temperature", "more"), WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("runner", [CpuRunner, CudaRunner])
@pytest.mark.slow
def test_texts_are_plain_decodings_and_a_device_is_read_once(runner: Any, temperature: float, more: Any) -> None:
    options = params(temperature, **more)
    plain = ran(CpuRunner(MODEL), autoregressive.build, TEXTS, options)
    known = {tuple(prompt): text for prompt, text in zip(TEXTS, plain.texts, strict=True)}

    def build(_: Any) -> Recipe:
        drafter = FirstOf((NGram(n_min=3),), NoisyOracle(known, V))
        return Recipe(drafter=drafter, policy=BestFirst(), verifier=Match(), controller=Fixed(5, 12))

    found = ran(runner(MODEL), build, TEXTS, options)
    assert found.texts == plain.texts and found.disabled == {None}
    assert min(found.accepted) > 0, found.accepted
    if runner is CudaRunner and not more:
        assert found.read_once(), found.by_round()


def test_the_contract_of_drafters() -> None:
    check_drafter(FirstOf((NGram(n_min=3), NGram(n_min=1))), BestFirst(), 5)
