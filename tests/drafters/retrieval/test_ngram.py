"""Copying finds what stood in the text before, and nothing else."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.drafters.retrieval.ngram import Index, NGram
from draftwood.testing.contracts import check_drafter, toy_round
from draftwood.trees.chain import Chain


def brute_force(text: list[int], n_min: int, n_max: int) -> list[tuple[int, int]]:
    """Every earlier place of the longest, then shorter patterns, the most recent first; no place twice."""
    found: list[tuple[int, int]] = []
    for n in range(min(n_max, len(text)), n_min - 1, -1):
        for end in range(len(text) - 1, n - 1, -1):
            if text[end - n : end] == text[-n:] and end not in [e for _, e in found]:
                found.append((n, end))
    return found


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), max_size=9), st.integers(1, 3), st.integers(0, 2))
def test_the_growing_index_equals_a_search_from_scratch(parts: list[list[int]], n_min: int, more: int) -> None:
    index, text = Index(n_min, n_min + more), list[int]()
    for part in parts:
        index.extend(part)
        text += part
        assert index.matches(1000) == brute_force(text, n_min, n_min + more)


def propose(text: list[int], drafter: NGram, depth: int = 4, nodes: int = 16) -> set[tuple[int, ...]]:
    rnd = toy_round([text], 100)
    tree = drafter.propose(
        drafter.init(1), rnd, Proposal.roots(rnd.roots()), Limit.of([depth], [nodes]), Chain(Draw.GIVEN)
    ).tree
    paths = tree.path_tokens(torch.arange(tree.num_nodes)[None])[0].tolist()
    return {tuple(t for t in p if t >= 0) for p, live in zip(paths, tree.live[0].tolist(), strict=True) if live}


def test_the_continuation_of_an_earlier_match_is_proposed() -> None:
    assert propose([1, 2, 3, 4, 5, 1, 2], NGram()) == {(), (3,), (3, 4), (3, 4, 5), (3, 4, 5, 1)}


def test_several_matches_become_a_tree() -> None:
    got = propose([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], NGram(), depth=2)
    assert got == {(), (3,), (3, 9), (4,), (4, 9)}


def test_no_match_means_no_draft() -> None:
    assert propose([1, 2, 3, 4], NGram()) == {()}
    assert propose([5], NGram()) == {()}, "a text shorter than the pattern"
    assert propose([1, 2, 1], NGram(n_min=2)) == {()}, "a single token is too little where two are asked for"


def test_a_pattern_at_the_very_start_is_found() -> None:
    assert (8,) in propose([7, 8, 9, 7], NGram(n_min=1))


def test_a_budget_keeps_the_heaviest_nodes_and_their_parents() -> None:
    text = [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2]
    got = propose(text, NGram(), depth=4, nodes=3)
    assert len(got) == 4 and all(p[:-1] in got for p in got if p)


def test_the_contract_of_drafters_holds() -> None:
    check_drafter(NGram(n_min=1), Chain(Draw.GIVEN), 4)
