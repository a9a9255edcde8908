"""A small model writes several drafts with one token per pass, and its cache stays that of the text."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from device_runs import ran
from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import ForwardInput, ForwardOutput
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.superposed.drafter import Superposed
from draftwood.drafters.superposed.superposition import Superposition
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.contracts import check_drafter, toy_round
from draftwood.testing.parts.tiny import tiny_decoder, tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match

TARGET = tiny_runner(2)
V = TARGET.info.vocab_size
PROMPTS = [[1, 2, 3], [4], [5, 6] * 9, [7, 8, 7, 8, 7]]


class Counting(CpuRunner):
    """Notes the tokens of each pass of everything opened from it."""

    sizes: list[int] = []  # noqa: RUF012

    def execute(self, x: ForwardInput, **given: Any) -> ForwardOutput:
        self.sizes.append(x.size)
        return super().execute(x, **given)


def superposed(layers: int = 3, target: Any = TARGET, **options: Any) -> Superposed:
    return Superposed(DraftModel(target.first_layers(layers)), Superposition(**options))


def recipe_of(drafter: Superposed, depth: int = 4, nodes: int = 12) -> Recipe:
    return Recipe(drafter=drafter, policy=BestFirst(), verifier=Match(), controller=Fixed(depth, nodes))


def drafts(proposal: Proposal) -> list[set[tuple[int, ...]]]:
    """Of each sequence the paths to its nodes."""
    tree = proposal.tree
    paths = tree.path_tokens(torch.arange(tree.num_nodes).expand(tree.batch, -1)).tolist()
    whole = zip(paths, tree.live.tolist(), strict=True)
    return [
        {tuple(t for t in path if t >= 0) for path, alive in zip(*each, strict=True) if alive} - {()} for each in whole
    ]


def proposed(drafter: Superposed, rnd: Round, depth: int, nodes: int) -> Proposal:
    limit = Limit.of([depth] * rnd.batch, [nodes] * rnd.batch)
    return drafter.propose(drafter.init(rnd.batch), rnd, Proposal.roots(rnd.roots()), limit, BestFirst())


@pytest.mark.parametrize("options", [{}, {"k": 1, "alpha": 0.0}, {"k": 6, "temperature": 1.0}])
def test_the_contract_of_drafters_holds(options: dict[str, Any]) -> None:
    check_drafter(superposed(**options), BestFirst(), V)


def test_a_level_is_one_token_for_each_sequence_whatever_the_number_of_drafts() -> None:
    drafter = Superposed(DraftModel(Counting(TARGET.model)), Superposition(5, temperature=1.0))
    rnd = toy_round([[1, 2, 3], [4, 5]], V)
    Counting.sizes.clear()
    proposal = proposed(drafter, rnd, 4, 40)
    assert Counting.sizes == [5, 2, 2, 2] and proposal.passes == 4
    for found in drafts(proposal):
        assert sum(len(path) == 4 for path in found) == 5, "five drafts that differ"
        assert all(path[:-1] in found | {()} for path in found)


def test_one_draft_is_the_models_own_greedy_continuation() -> None:
    """A draft that is the target itself is always accepted."""
    got = serve(make_engine(TARGET, recipe_of(superposed(4, k=1, alpha=0.0))), PROMPTS, SamplingParams(max_tokens=21))
    for r in got:
        assert r.stats.disabled is None and r.stats.rounds_some == r.stats.rounds_none == 0


def test_nodes_are_cut_to_the_budget_by_their_chances() -> None:
    drafter, rnd = superposed(4, k=4, temperature=1.0), toy_round([[1, 2, 3]], V)
    whole, cut = proposed(drafter, rnd, 3, 50), proposed(drafter, rnd, 3, 4)
    tree = whole.tree
    assert (tree.score.gather(1, tree.parents.clamp_min(0)) >= tree.score).all()
    best = tree.score[0, 1:].sort(descending=True).values[:4]
    assert torch.equal(cut.tree.score[0, 1:].sort(descending=True).values, best)


def test_options_of_a_request_act_along_each_draft() -> None:
    def alternating(tokens: Any) -> torch.Tensor:
        return torch.arange(V) % 2 == len(tokens) % 2

    params = SamplingParams(grammar=alternating, repetition_penalty=1.2)
    requests = (Request(0, [1, 2, 3], params, V), Request(1, [1, 2, 3], SamplingParams(), V))
    rnd = Round(torch.arange(2), torch.tensor([3, 3]), requests)
    masked, free = drafts(proposed(superposed(k=4), rnd, 3, 20))
    assert masked and all(token % 2 == i % 2 for path in masked for i, token in enumerate(path))
    assert not all(token % 2 == i % 2 for path in free for i, token in enumerate(path))


def test_a_draft_stops_at_the_end_of_a_text() -> None:
    ends = tuple(range(0, V, 2))
    rnd = Round(torch.arange(1), torch.tensor([3]), (Request(0, [1, 2, 3], SamplingParams(), V, eos=ends),))
    (found,) = drafts(proposed(superposed(k=4), rnd, 4, 30))
    assert any(path[-1] in ends for path in found)
    assert not any(token in ends for path in found for token in path[:-1])


def test_what_followed_a_token_in_the_text_is_drafted_behind_it_where_n_grams_count() -> None:
    def copied(alpha: float) -> int:
        rnd = toy_round([[*range(V), *range(V)]], V)
        (found,) = drafts(proposed(superposed(4, k=8, candidates=V, temperature=20.0, alpha=alpha), rnd, 2, 200))
        return sum(path[1] == (path[0] + 1) % V for path in found if len(path) == 2)

    assert copied(0.54) > copied(0.0)


def test_after_every_round_its_cache_equals_a_fresh_one() -> None:
    """No entry of a mixture is kept."""
    draft, checked = TARGET.first_layers(3), list[int]()

    def compare(rnd: Any, outcome: Any, output: Any) -> None:
        cache = engine.drafter_state.model.runner.cache
        for slot, request in zip(rnd.slots.tolist(), rnd.requests, strict=True):
            length = cache.length(slot)
            text, index = request.known[:length], torch.arange(length)
            fresh = draft.open(1, 300)
            fresh.admit(0, [])
            fresh.execute(ForwardInput(torch.tensor(text), index * 0, index, index, index - 1, index[:0]))
            assert cache.text(slot) == text
            for spec in draft.model.cache_specs:
                have, want = cache.store(spec.name)[slot, :, :length], fresh.cache.store(spec.name)[0, :, :length]
                assert torch.allclose(have, want, atol=1e-11)
            checked.append(length)

    recipe = replace(recipe_of(Superposed(DraftModel(draft), Superposition())), watch=(compare,))
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=15) for i in range(4)]
    engine = make_engine(TARGET, recipe, slots=2, chunk=5)
    got = serve(engine, PROMPTS, params)
    assert all(r.stats.disabled is None for r in got) and len(checked) > 10
    assert sum(r.stats.rounds_some + r.stats.rounds_all for r in got) > 3


def test_where_a_device_drafts_the_text_is_the_same_and_each_level_is_one_read() -> None:
    params = [SamplingParams(max_tokens=12, temperature=t, seed=3) for t in (0.0, 1.0, 0.0)]

    def build(target: Any) -> Recipe:
        return recipe_of(superposed(target=target), 3, 6)

    device = ran(CudaRunner(tiny_decoder(2)), build, PROMPTS[:3], params)
    plain = ran(TARGET, build, PROMPTS[:3], params)
    assert device.texts == plain.texts and device.disabled == {None}
    assert device.accepted == plain.accepted and min(device.accepted) > 0
    assert max(reads.total for reads in device.reads) == 1 + 3, device.by_round()
