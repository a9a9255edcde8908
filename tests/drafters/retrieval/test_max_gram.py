"""The longest end of the text is continued as it was the first time, also behind a draft."""

from typing import Any

import pytest

from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.retrieval.max_gram import MaxGram
from draftwood.errors import OptionError
from draftwood.testing.contracts import Always, check_drafter, toy_round
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

POLICY = Chain(Draw.GIVEN)


def continued(text: list[int], path: list[int] | None = None, count: int = 4, min_match: int = 1) -> list[int]:
    drafter, request = MaxGram(min_match), Request(0, text, SamplingParams(), 100)
    return drafter.continued(drafter.init(1), 0, request, path or [], count)[0]


def test_the_longest_match_wins_and_of_equal_ones_the_first() -> None:
    assert continued([1, 2, 7, 2, 8, 1, 2], count=1) == [7]
    assert continued([2, 7, 2, 8, 2], count=1) == [7]
    assert continued([2, 7, 2, 8, 2], min_match=2) == []


def test_a_copy_that_reaches_the_end_of_the_text_is_matched_again() -> None:
    assert continued([1, 2, 3, 1, 2], count=8) == [3, 1, 2, 3, 1, 2, 3, 1]


def test_a_draft_is_continued_like_text() -> None:
    text = [5, 6, 7, 8, 9, 1]
    assert continued(text) == [], "1 is new"
    assert continued(text, [6, 7]) == [8, 9, 1]
    assert continued(text, [6, 4]) == []


def test_the_contract_of_drafters_holds() -> None:
    for min_match in (1, 2):
        check_drafter(MaxGram(min_match), POLICY, 4)


def test_a_longer_match_is_trusted_more_and_scores_fall() -> None:
    rnd = toy_round([[1, 2, 3, 4, 1, 2, 3], [9, 3, 4, 1, 2, 3]], 10)
    drafter = MaxGram()
    long, short = drafter.retrieve(drafter.init(2), rnd, Limit.of([3, 3], [3, 3]))
    assert long.tokens == [4, 1, 2] and short.tokens == []
    assert long.score == sorted(long.score, reverse=True) and long.chances() == sorted(long.chances())


def test_a_tree_that_is_there_already_is_left_alone() -> None:
    drafter, rnd = MaxGram(1), toy_round([[1, 2, 1]], 9)
    state, limit = drafter.init(1), Limit.of([4], [4])
    bare = Proposal.roots(rnd.roots())
    first = drafter.propose(state, rnd, bare, limit, POLICY)
    assert first.tree.num_nodes > 1 and drafter.propose(state, rnd, first, limit, POLICY) is first
    assert drafter.propose(state, rnd.ahead(), bare, limit, POLICY) is bare


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0}], ids=str)
def test_the_text_is_that_of_plain_decoding(options: dict[str, Any]) -> None:
    target, prompts = tiny_runner(2), [([1 + i, 2, 3] * 4)[: 5 + i] for i in range(8)]
    params = [SamplingParams(seed=i, max_tokens=20, **options) for i in range(8)]
    texts: list[list[list[int]]] = []
    for depth in (5, 0):
        recipe = Recipe(drafter=MaxGram(1), policy=POLICY, verifier=Match(), controller=Always(depth, depth))
        done = serve(make_engine(target, recipe, slots=3, chunk=4), prompts, params)
        assert {r.stats.disabled for r in done} == {None} and bool(depth) == any(r.stats.draft_tokens for r in done)
        texts.append([r.output for r in done])
    assert texts[0] == texts[1]


def test_a_match_of_no_tokens_is_refused() -> None:
    with pytest.raises(OptionError, match="min_match"):
        MaxGram(0)
