"""Retrieved continuations stay trees when they are cut."""

from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.proposal import Proposal
from draftwood.drafters.retrieval.retrieved import NOTHING, Retrieved, as_given


@st.composite
def trees(draw: st.DrawFn) -> Retrieved:
    size = draw(st.integers(0, 12))
    parents = [draw(st.integers(0, i)) for i in range(size)]
    chances = [draw(st.sampled_from([0.1, 0.5, 0.5, 1.0])) for _ in range(size)]
    score: list[float] = []
    for parent, chance in zip(parents, chances, strict=True):
        score.append((score[parent - 1] if parent else 0.0) + log(chance))
    return Retrieved(list(range(100, 100 + size)), parents, score)


@given(trees(), st.integers(0, 12))
def test_the_best_nodes_keep_their_parents(tree: Retrieved, nodes: int) -> None:
    above = {token: tree.tokens[p - 1] if p else -1 for token, p in zip(tree.tokens, tree.parents, strict=True)}
    best = tree.best(nodes)
    assert len(best.tokens) == min(nodes, len(tree.tokens))
    for token, parent in zip(best.tokens, best.parents, strict=True):
        assert above[token] == (best.tokens[parent - 1] if parent else -1)
    left_out = set(tree.score) if not best.tokens else {s for s in tree.score if s > min(best.score)}
    assert not best.tokens or all(s in best.score for s in left_out), "no better node was left out"


@given(trees())
def test_chances_multiply_to_the_score(tree: Retrieved) -> None:
    chances = tree.chances()
    for i, score in enumerate(tree.score):
        total, at = 1.0, i + 1
        while at:
            total, at = total * chances[at - 1], tree.parents[at - 1]
        assert log(total) == pytest.approx(score, abs=1e-9)


def test_each_sequence_names_its_source() -> None:
    roots = Proposal.roots(torch.tensor([1, 2, 3]))
    found = [Retrieved([5, 6], [0, 1], [-0.1, -0.2]), NOTHING, Retrieved([7], [0], [-0.3])]
    tree = as_given(roots, found, source=[2, 0, 1]).tree
    assert tree.live.tolist() == [[True, True, True], [True, False, False], [True, True, False]]
    assert tree.source[0].tolist() == [-1, 2, 2] and tree.source[2, :2].tolist() == [-1, 1]
