"""Two trees become one without losing a path, on a processor and as on a device."""

import random
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.core.proposal import Inputs, Proposal
from draftwood.core.tree import PROBE, SCORED
from draftwood.drafters.combine.merge import merge
from draftwood.testing.host_reads import HostReads, as_if_on_a_device


def tree(rng: random.Random, batch: int = 3, vocab: int = 3) -> Proposal:
    """Random given trees; of equal siblings only the first is there."""
    tokens: list[list[int]] = []
    parents: list[list[int]] = []
    for _ in range(batch):
        own: dict[tuple[int, int], int] = {}
        for _ in range(rng.randrange(6)):
            own.setdefault((rng.randrange(len(own) + 1), rng.randrange(vocab)), 0)
        parents.append([parent for parent, _ in own])
        tokens.append([token for _, token in own])
    score: list[list[float]] = []
    for above in parents:
        ranks = [0.0]
        for parent in above:
            ranks.append(ranks[parent] - rng.random())
        score.append(ranks[1:])
    return Proposal.roots(torch.full((batch,), 9)).with_given(tokens, parents, score)


def paths(proposal: Proposal, b: int) -> list[tuple[int, ...]]:
    t = proposal.tree
    nodes = torch.arange(t.num_nodes).expand(t.batch, -1)
    listed = t.path_tokens(nodes)[b].tolist()
    return [tuple(x for x in path if x >= 0) for path, live in zip(listed, t.live[b].tolist(), strict=True) if live]


def falls(proposal: Proposal) -> bool:
    t = proposal.tree
    below = t.live & (t.parents >= 0)
    return bool((~below | (t.score <= t.score.gather(1, t.parents.clamp_min(0)))).all())


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
@pytest.mark.slow
def test_every_path_of_both_is_there_once_and_the_first_keeps_its_numbers(seed: int) -> None:
    rng = random.Random(seed)
    first, second = tree(rng), tree(rng)
    found = merge(first, second)
    with as_if_on_a_device(), HostReads() as reads:
        other = merge(first, second)
    assert reads.total == 0
    for b in range(3):
        mine, theirs, both = paths(first, b), paths(second, b), paths(found, b)
        assert len(both) == len(set(both)), "a path is there twice"
        assert set(both) == set(mine) | set(theirs)
        assert len(both) == len(mine) + len(theirs) - len(set(mine) & set(theirs))
        assert set(paths(other, b)) == set(both)
    if first.tree.num_nodes > 1:
        assert torch.equal(found.tree.tokens[:, : first.tree.num_nodes], first.tree.tokens)
    assert falls(found) and falls(other)
    assert sorted(found.tree.score[found.tree.live].tolist()) == sorted(other.tree.score[other.tree.live].tolist())


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_a_tree_merged_with_itself_is_itself(seed: int) -> None:
    one = tree(random.Random(seed))
    found = merge(one, one)
    assert [paths(found, b) for b in range(3)] == [paths(one, b) for b in range(3)]


def test_draft_passes_and_faults_add_up() -> None:
    rng = random.Random(1)
    a, b = (replace(tree(rng), passes=2, pass_seconds=0.5), replace(tree(rng), passes=3, pass_seconds=0.25, fault="x"))
    assert (merge(a, b).passes, merge(a, b).pass_seconds, merge(a, b).fault) == (5, 0.75, "x")
    bare = Proposal.roots(torch.full((3,), 9))
    assert merge(bare, b).passes == 3 and merge(a, bare).tree is a.tree


def test_the_check_of_falling_scores_sees_a_child_above_its_parent() -> None:
    """The twin: a merge that takes scores as they are."""
    low: Any = Proposal.roots(torch.tensor([9])).with_given([[1]], [[0]], [[-5.0]])
    high: Any = Proposal.roots(torch.tensor([9])).with_given([[1, 2]], [[0, 1]], [[-0.1, -0.2]])
    found = merge(low, high)
    assert falls(found) and found.tree.score[0, -1] == -5.0
    spoiled = found.tree.score.clone()
    spoiled[0, -1] = -0.2
    assert not falls(replace(found, tree=replace(found.tree, score=spoiled)))


@pytest.mark.parametrize("swapped", [False, True])
def test_a_bare_proposal_adds_nothing(swapped: bool) -> None:
    one, bare = tree(random.Random(3)), Proposal.roots(torch.full((3,), 9))
    found = merge(bare, one) if swapped else merge(one, bare)
    assert [paths(found, b) for b in range(3)] == [paths(one, b) for b in range(3)]


def test_probes_with_inputs_of_their_own_stay_with_the_first_and_stand_for_no_token() -> None:
    """Both have a probe below the root that carries token 1; the second draft begins with token 1."""

    def probing(tokens: list[int]) -> Proposal:
        made = Proposal.roots(torch.tensor([9])).with_given([tokens], [[0] * len(tokens)], [[-1.0] * len(tokens)])
        last = torch.arange(made.tree.num_nodes)[None] == len(tokens)
        tree = replace(made.tree, role=torch.where(last, PROBE, SCORED))
        return replace(made, tree=tree, inputs=Inputs(torch.ones(1, 2), last.long() - 1))

    for situation in (nullcontext(), as_if_on_a_device()):
        with situation:
            found = merge(probing([2, 1]), probing([1, 3]))
        live = found.tree.live[0]
        assert found.inputs is not None and found.tree.tokens[0, live].tolist() == [9, 2, 1, 1]
        assert found.inputs.index[0, live].tolist() == [-1, -1, 0, -1]
        assert found.tree.role[0, live].tolist() == [SCORED, SCORED, PROBE, SCORED]
