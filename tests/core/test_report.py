"""What is read of a round in one copy is what lists would have told."""

import random

import pytest
import torch

from draftwood.core.host_tree import HostTree, verdict
from draftwood.core.proposal import Proposal
from draftwood.core.report import Report, from_lists, read
from draftwood.core.tree import PROBE, SCORED, TokenTree
from draftwood.testing.host_reads import HostReads


def random_trees(rng: random.Random, batch: int, nodes: int, dead: float) -> Proposal:
    """Trees of any shape, with nodes of several sources; some dead, some that only ride along."""
    tokens = [[rng.randrange(50) for _ in range(nodes)] for _ in range(batch)]
    parents = [[-1, *(rng.randrange(i) for i in range(1, nodes))] for _ in range(batch)]
    live = [[True] for _ in range(batch)]
    role = [[SCORED, *(PROBE if rng.random() < 0.1 else SCORED for _ in range(1, nodes))] for _ in range(batch)]
    for b in range(batch):
        for i in range(1, nodes):
            live[b].append(live[b][parents[b][i]] and rng.random() >= dead)
    t = torch.tensor
    tree = TokenTree(
        tokens=t(tokens),
        parents=t(parents),
        live=t(live),
        role=t(role),
        copies=torch.zeros(batch, nodes, dtype=torch.int64),
        score=torch.zeros(batch, nodes),
        source=t([[rng.randrange(3) for _ in range(nodes)] for _ in range(batch)]),
    )
    return Proposal(tree)


def random_paths(rng: random.Random, tree: HostTree) -> list[list[int]]:
    """A scored node of each tree whose whole path is scored, and the way to it."""
    found: list[list[int]] = []
    for b in range(tree.batch):
        nodes = [i for i in range(tree.width) if all(tree.scored[b][n] for n in tree.path(b, i))]
        found.append(tree.path(b, rng.choice(nodes)))
    return found


@pytest.mark.parametrize("dead", [0.0, 0.4])
def test_one_read_tells_what_lists_tell(dead: float) -> None:
    rng = random.Random(1)
    accepted = 0
    for _ in range(60):
        batch, nodes = rng.randrange(1, 6), rng.randrange(1, 12)
        proposal = random_trees(rng, batch, nodes, dead)
        lists = HostTree.of(proposal.tree)
        paths = random_paths(rng, lists)
        made = verdict(paths, [rng.randrange(50) for _ in range(batch)], torch.device("cpu"))
        faults = [rng.randrange(4) for _ in range(batch)]
        with HostReads() as reads:
            found = read(proposal, made, torch.tensor(faults))
        assert reads.total == 1, reads.by_name
        right = from_lists(lists, made)
        for name in ("paths", "after", "tokens", "sources", "drafted", "deepest", "emitted"):
            assert getattr(found, name) == getattr(right, name), name
        assert (found.faults, right.faults) == (faults, [0] * batch)
        # Dead nodes ride where nobody looks, so an entry is a node's number there, and its rank among the living here.
        assert found.entries == [path[1:] for path in paths]
        assert right.entries == [[lists.rank[b][i] for i in path[1:]] for b, path in enumerate(paths)]
        assert dead or found.entries == right.entries
        accepted += sum(map(len, found.tokens))
    assert accepted > 50


def test_depths_that_somebody_has_are_not_computed_again() -> None:
    proposal = random_trees(random.Random(2), 2, 6, 0.0)
    made = verdict([[0], [0]], [1, 2], torch.device("cpu"))
    deep = torch.full((2, 6), 4)
    found = read(Proposal(proposal.tree, depths=deep), made, torch.zeros(2, dtype=torch.int64))
    assert found.deepest == [4, 4]


def test_emitted_tokens_are_the_path_and_what_follows_it() -> None:
    found = Report([[0, 2, 3], [0]], [7, 8], [[4, 5], []], [[0, 0], []], [[2, 3], []], [3, 3], [2, 1], [0, 0])
    assert found.emitted == [[4, 5, 7], [8, -1, -1]]
    assert Report([], [], [], [], [], [], [], []).emitted == []
