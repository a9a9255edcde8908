"""An host tree in lists says what the tree says in tensors."""

import random

import pytest
import torch

from draftwood.core.host_tree import HostTree, verdict
from draftwood.core.score import KnownTokens, assemble_lists, assemble_tensors
from draftwood.core.tree import AHEAD, PROBE, SCORED, TokenTree
from draftwood.verifiers.walk import walk

VOCAB = 5
CPU = torch.device("cpu")


def grown(seed: int, batch: int = 4, nodes: int = 24) -> TokenTree:
    """Random trees with dead nodes and all roles. Below a node that is not SCORED hangs only its like, and no two live
    children of a node carry the same token."""
    rng = random.Random(seed)
    tree = TokenTree.roots(torch.tensor([rng.randrange(VOCAB) for _ in range(batch)]))
    for i in range(1, rng.randint(1, nodes)):
        parents = [rng.randrange(i) for _ in range(batch)]
        tokens = [rng.randrange(VOCAB) for _ in range(batch)]
        above = [int(tree.role[b, p]) for b, p in enumerate(parents)]
        roles = [rng.choice([SCORED] * 6 + [AHEAD, PROBE]) if role == SCORED else role for role in above]
        twin = [
            bool((tree.live[b] & (tree.parents[b] == p) & (tree.tokens[b] == t)).any())
            for b, (p, t) in enumerate(zip(parents, tokens, strict=True))
        ]
        live = torch.tensor([[rng.random() < 0.85 and not same] for same in twin])
        tree = tree.add(torch.tensor(parents)[:, None], torch.tensor(tokens)[:, None], live=live, source=i % 3)
        tree.role[:, -1] = torch.tensor(roles)
    return tree


TREES = [grown(seed) for seed in range(60)]


def test_trees_hold_every_kind_of_node():
    for role in (SCORED, AHEAD, PROBE):
        assert any((tree.live & (tree.role == role)).any() for tree in TREES)
    assert any((~tree.live).any() for tree in TREES) and any(tree.num_nodes == 1 for tree in TREES)


@pytest.mark.parametrize("tree", TREES)
def test_host_tree_says_what_the_tree_says(tree: TokenTree):
    host_tree = HostTree.of(tree)
    assert host_tree.batch == tree.batch
    for name in ("tokens", "parents", "source"):
        assert getattr(host_tree, name) == getattr(tree, name).tolist()
    assert host_tree.depth == tree.depths().tolist()
    assert host_tree.drafted == tree.num_drafted().tolist()
    assert host_tree.deepest == (tree.depths() * (tree.live & (tree.role == SCORED))).amax(1).tolist()
    assert host_tree.in_pass == tree.num_in_pass().tolist()
    assert host_tree.scored == (tree.live & (tree.role == SCORED)).tolist()
    for node in range(tree.num_nodes):
        below = tree.children(torch.full((tree.batch,), node))
        said = [
            [on and parent == node for on, parent in zip(scored, parents, strict=True)]
            for scored, parents in zip(host_tree.scored, host_tree.parents, strict=True)
        ]
        assert said == below.tolist()


@pytest.mark.parametrize("tree", TREES)
def test_rank_counts_the_nodes_of_the_pass(tree: TokenTree):
    inside = tree.live & (tree.role != AHEAD)
    right = torch.where(inside, inside.long().cumsum(1) - 1, -1)
    assert HostTree.of(tree).rank == right.tolist()


@pytest.mark.parametrize("seed", range(len(TREES)))
def test_following_is_walking(seed):
    tree, noise = TREES[seed], torch.Generator().manual_seed(seed)
    for _ in range(4):
        choice = torch.randint(-1, VOCAB, tree.tokens.shape, generator=noise)
        said = HostTree.of(tree).follow(choice.tolist(), CPU)
        right = walk(tree, lambda here, depth, where, choice=choice: choice.gather(1, here.node[:, None])[:, 0])
        for name in ("path", "count", "next_token"):
            assert torch.equal(getattr(said, name), getattr(right, name))


def test_following_goes_down_to_a_leaf():
    """Each node chooses its first scored child."""
    depth: list[int] = []
    for tree in TREES:
        choice = torch.full_like(tree.tokens, -1)
        for node in range(tree.num_nodes):
            below = tree.children(torch.full((tree.batch,), node))
            first = tree.tokens.gather(1, below.int().argmax(1, keepdim=True))[:, 0]
            choice[:, node] = torch.where(below.any(1), first, -1)
        said = HostTree.of(tree).follow(choice.tolist(), CPU)
        assert (said.next_token == -1).all()
        depth += said.count.tolist()
    assert max(depth) >= 3


def test_verdict_of_no_sequence_is_empty():
    assert verdict([], [], CPU).path.shape == (0, 1)


# --- one pass of chains and trees


@pytest.mark.parametrize("tree", TREES)
def test_every_node_finds_its_place_in_the_pass(tree: TokenTree):
    host_tree = HostTree.of(tree)
    chains = [
        *(KnownTokens(slot=9 - b, done=3 * b, tokens=[7] * b + [int(tree.tokens[b, 0])]) for b in range(tree.batch)),
        KnownTokens(slot=1, done=5, tokens=[11, 12, 13]),  # a prompt that only fills the cache
    ]
    x, places = assemble_lists(chains, host_tree, CPU)
    place = torch.tensor(places)
    assert place.shape == tree.tokens.shape
    wanted: list[int] = []
    for b, chain in enumerate(chains[:-1]):
        root, last = int(place[b, 0]), len(chain.tokens) - 1
        for node in range(tree.num_nodes):
            at = int(place[b, node])
            if host_tree.rank[b][node] < 0:
                assert at == root, "dead nodes point at the root"
                continue
            wanted.append(at)
            assert int(x.ids[at]) == int(tree.tokens[b, node]) and int(x.slots[at]) == chain.slot
            assert int(x.positions[at]) == chain.done + last + host_tree.depth[b][node]
            assert int(x.entries[at]) == last + host_tree.rank[b][node] == at - root + last
            above = int(place[b, tree.parents[b, node]]) - root + last if node else last - 1
            assert int(x.parents[at]) == above
        assert x.ids[root - last : root + 1].tolist() == chain.tokens
    assert x.want.tolist() == wanted
    assert x.ids[-3:].tolist() == [11, 12, 13] and x.positions[-3:].tolist() == [5, 6, 7]
    assert x.entries[-3:].tolist() == [0, 1, 2] and x.parents[-3:].tolist() == [-1, 0, 1]


def test_pass_without_trees_is_its_chains():
    empty = HostTree.of(TokenTree.roots(torch.zeros(0, dtype=torch.int64)))
    x, places = assemble_lists([KnownTokens(2, 4, [5, 6])], empty, CPU)
    assert places == [] and x.ids.tolist() == [5, 6] and len(x.want) == 0


@pytest.mark.parametrize("tree", TREES)
def test_pass_of_tensors_has_every_node_in_its_place(tree: TokenTree):
    """Known text as in a pass of lists; below it all nodes, dead ones too, in their own order."""
    tree = tree.keep(tree.live).compact(tree.num_nodes)[0]
    for longer in (0, 1):
        chains = [KnownTokens(9 - b, 3 * b, [7] * b * longer + [int(tree.tokens[b, 0])]) for b in range(tree.batch)]
        chains += [KnownTokens(1, 5, [11, 12, 13])] * longer
        x, places = assemble_tensors(chains, tree)
        assert x.want.tolist() == [place for each in places for place in each]
        for b, (chain, span) in enumerate(zip(chains, x.spans, strict=True)):
            own, line = slice(span.start, span.stop), len(chain.tokens)
            assert (span.slot, span.done, span.first, span.line) == (chain.slot, chain.done, 0, line)
            assert set(x.slots[own].tolist()) == {chain.slot}
            assert x.entries[own].tolist() == list(range(span.stop - span.start))
            known = slice(span.start, span.start + line)
            assert x.ids[known].tolist() == chain.tokens and x.parents[known].tolist() == list(range(-1, line - 1))
            assert x.positions[known].tolist() == list(range(chain.done, chain.done + line))
            if b < tree.batch:
                at = torch.tensor(places[b])
                assert x.ids[at].tolist() == tree.tokens[b].tolist()
                deep = chain.done + line - 1 + tree.depths()[b]
                assert x.positions[at].tolist() == deep.tolist()
                above = torch.where(tree.parents[b] >= 0, tree.parents[b] + line - 1, line - 2)
                assert x.parents[at].tolist() == above.tolist()
