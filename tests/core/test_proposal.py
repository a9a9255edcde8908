"""Distributions and numbers follow their nodes through every change of a proposal."""

import random
from dataclasses import replace

import pytest
import torch

from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Inputs, Proposal, Started
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import AHEAD, PROBE, SCORED, TokenTree
from draftwood.core.verdict import Verdict
from draftwood.testing.contracts import toy_round
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import random_probs
from draftwood.trees.static import Static


def drawn() -> Proposal:
    rnd = toy_round([[1], [2, 3]], 5)
    return TableDrafter(random_probs(5, 1)).propose(
        None, rnd, Proposal.roots(rnd.roots()), Limit.of([2, 2], [6, 6]), Static((2, 2))
    )


def test_compacting_keeps_each_nodes_distribution() -> None:
    proposal = drawn()
    kept = proposal.keep(torch.tensor([[1, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1, 0]], dtype=torch.bool))
    small = kept.compact(int(kept.tree.live.sum(1).max()))
    assert proposal.q is not None
    for row in range(2):
        for node in range(small.tree.num_nodes):
            if not small.tree.live[row, node]:
                continue
            same = (proposal.tree.tokens[row] == small.tree.tokens[row, node]) & kept.tree.live[row]
            rows = {int(r) for r in proposal.q_indices()[row][same]}
            assert int(small.q_indices()[row, node]) in rows


# --- inputs of their own


def probing(batch: int, node: int, nodes: int = 4, first: float = 0.0) -> Proposal:
    """A chain whose node `node` is a probe that enters by vector 1 of two."""
    tree = TokenTree.roots(torch.arange(batch))
    for i in range(nodes - 1):
        at = torch.full((batch, 1), i)
        tree = tree.add(at, at + 1, live=at >= 0, copies=0, role=PROBE if i + 1 >= node else SCORED)
    index = torch.where(torch.arange(nodes) == node, 1, -1).expand(batch, -1)
    return Proposal(tree, inputs=Inputs(torch.tensor([[first], [first + 1]]), index))


def entered(proposal: Proposal) -> list[dict[int, float]]:
    """Of each sequence, the tokens that stand for a node with an input of its own, and that input."""
    assert proposal.inputs is not None
    each = zip(proposal.tree.tokens.tolist(), proposal.inputs.index.tolist(), proposal.tree.live.tolist(), strict=True)
    vectors = proposal.inputs.vectors[:, 0].tolist()
    return [
        {t: vectors[i] for t, i, on in zip(tokens, index, live, strict=True) if on and i >= 0}
        for tokens, index, live in each
    ]


def test_inputs_follow_their_nodes() -> None:
    made = probing(2, 3)
    assert entered(made) == [{3: 1.0}] * 2
    cut = made.keep(torch.tensor([[True, True, True, False], [True] * 4]))
    assert entered(cut.compact(4)) == [{}, {3: 1.0}] == entered(cut.compact(5))
    turned = replace(made, tree=replace(made.tree, live=torch.tensor([[True, True, False, False]] * 2)))
    assert entered(turned.compact(2)) == [{}, {}]
    assert entered(made.take(torch.tensor([1]))) == [{3: 1.0}]


def test_inputs_of_some_sequences_stand_beside_those_of_the_others() -> None:
    part, bare = probing(1, 2, nodes=3, first=10.0), Proposal.roots(torch.arange(3))
    assert entered(part.scatter([1], bare)) == [{}, {2: 11.0}, {}]
    both = part.scatter([1], probing(3, 3))
    assert entered(both) == [{3: 1.0}, {2: 11.0}, {3: 1.0}]
    without = replace(part, inputs=None).scatter([1], probing(3, 3))
    assert entered(without) == [{3: 1.0}, {}, {3: 1.0}]


# --- the next root

BATCH, NODES, VOCAB = 40, 14, 4


def in_flight(seed: int) -> tuple[Proposal, Verdict]:
    """Random trees, the lower parts of which were drafted ahead, and a random path of each with a token after it."""
    rng = random.Random(seed)
    columns: dict[str, list[list[int]]] = {"tokens": [], "parents": [], "live": [], "role": []}
    paths: list[list[int]] = []
    after: list[int] = []
    for _ in range(BATCH):
        tokens, parents, live, role = [0], [-1], [1], [SCORED]
        for node in range(1, NODES):
            parents.append(rng.choice([node - 1, rng.randrange(node)]))
            token = rng.randrange(VOCAB)
            twin = (parents[-1], token) in zip(parents, tokens, strict=False)
            tokens.append(token)
            live.append(int(bool(live[parents[-1]]) and not twin and rng.random() < 0.9))
            role.append(AHEAD if role[parents[-1]] == AHEAD or rng.random() < 0.4 else SCORED)
        last = rng.choice([i for i in range(NODES) if live[i] and role[i] == SCORED])
        path = [last]
        while path[0]:
            path.insert(0, parents[path[0]])
        paths.append(path + [-1] * (NODES - len(path)))
        named = [tokens[i] for i in range(NODES) if live[i] and role[i] == AHEAD and parents[i] == last]
        after.append(rng.choice([*named, *named, rng.randrange(VOCAB)]))
        for name, column in zip(columns, (tokens, parents, live, role), strict=True):
            columns[name].append(column)
    made = {name: torch.tensor(column) for name, column in columns.items()}
    index = torch.arange(BATCH * NODES).view(BATCH, NODES)
    tree = TokenTree(
        **{**made, "live": made["live"].bool()}, copies=index % 3, score=-made["parents"] - 2.0, source=index % 5
    )
    path = torch.tensor(paths)
    proposal = Proposal(tree, Draw.IID, DraftProbs(torch.rand(BATCH * NODES, VOCAB)), index)
    return proposal, Verdict(path, (path >= 0).sum(1) - 1, torch.tensor(after))


def paths_of(proposal: Proposal, b: int, role: int, top: int = 0) -> dict[tuple[int, ...], tuple[int, int, int]]:
    """Tokens on the way from `top` to each live node below it -> its copies, source and distribution; in order."""
    tree, found = proposal.tree, {}
    for node in range(tree.num_nodes):
        way, at = [], node
        while at > top:
            way.insert(0, int(tree.tokens[b, at]))
            at = int(tree.parents[b, at])
        if at == top and node != top and tree.live[b, node]:
            assert int(tree.role[b, node]) == role
            found[tuple(way)] = tuple(int(x[b, node]) for x in (tree.copies, tree.source, proposal.q_indices()))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_next_root_is_the_child_that_the_emitted_token_names_with_all_below_it(seed: int) -> None:
    before, verdict = in_flight(seed)
    after = before.reroot(verdict)
    tree, adopted, below = before.tree, 0, 0
    assert torch.equal(after.tree.tokens[:, 0], verdict.next_token) and after.q is before.q
    assert bool((after.tree.role == SCORED).all()) and bool((after.tree.parents[:, 0] == -1).all())
    assert bool(((after.tree.parents < torch.arange(NODES)) | ~after.tree.live).all())
    assert bool((after.tree.live.long().diff(dim=1) <= 0).all())  # no gaps
    for b in range(BATCH):
        last = int(verdict.path[b, verdict.count[b]])
        named = (tree.parents[b] == last) & (tree.tokens[b] == verdict.next_token[b])
        heads = (named & tree.live[b] & (tree.role[b] == AHEAD)).nonzero().flatten().tolist()
        expected = paths_of(before, b, AHEAD, heads[0]) if heads else {}
        assert list(paths_of(after, b, SCORED).items()) == list(expected.items())
        assert int(after.q_indices()[b, 0]) == (int(before.q_indices()[b, heads[0]]) if heads else -1)
        adopted, below = adopted + bool(heads), below + len(expected)
    assert 5 < adopted < BATCH - 5 and below > 10


def test_the_next_root_is_found_without_a_look() -> None:
    before, verdict = in_flight(0)
    with as_if_on_a_device(), HostReads() as reads:
        before.reroot(verdict)
    assert reads.total == 0, reads.by_name


def test_scores_of_a_carried_tree_count_from_its_root() -> None:
    before, verdict = in_flight(1)
    tree = before.tree
    score = -tree.depths().float()
    after = replace(before, tree=replace(tree, score=score)).reroot(verdict).tree
    assert torch.equal(torch.where(after.live, after.score, 0), torch.where(after.live, -after.depths().float(), 0))


def test_sequences_of_two_proposals_keep_their_nodes_and_distributions() -> None:
    one, two = (in_flight(seed)[0] for seed in (2, 3))
    places = [3, 0, 17]
    both = two.take(torch.tensor(places)).scatter(places, one)
    assert both.q is not None and one.q is not None and two.q is not None
    for b in range(BATCH):
        source = two if b in places else one
        assert source.q is not None
        assert torch.equal(both.tree.tokens[b], source.tree.tokens[b])
        assert torch.equal(both.q.prob[both.q_indices()[b]], source.q.prob[source.q_indices()[b]])


def test_distributions_that_no_node_names_are_left_behind() -> None:
    whole = in_flight(4)[0]
    part = whole.take(torch.tensor([5, 9])).keep(torch.rand(2, NODES) < 0.5).compact(6)
    own = part.with_own_probs()
    assert own.q is not None and part.q is not None and own.q.num_distributions == 12
    named = part.q_indices() >= 0
    assert torch.equal(own.q_indices() >= 0, named)
    assert torch.equal(own.q.prob[own.q_indices()[named]], part.q.prob[part.q_indices()[named]])


def test_what_is_started_follows_its_nodes_and_keeps_its_entries() -> None:
    tree = TokenTree.roots(torch.tensor([5, 6]))
    first = torch.tensor([[0, 0], [0, 0]])
    tree = tree.add(first, torch.tensor([[1, 2], [4, 5]]), live=torch.ones(2, 2).bool())
    tree = tree.add(torch.tensor([[2], [1]]), torch.tensor([[3], [6]]), live=torch.ones(2, 1).bool())
    hidden = torch.arange(8.0).view(2, 4, 1)
    proposal = Proposal(tree, started=Started(3, hidden, features={1: -hidden}))
    cut = proposal.keep(torch.tensor([[True, False, True, True], [True, True, False, True]])).compact(3)
    assert cut.started is not None and cut.started.layers == 3
    assert cut.started.entries is not None
    assert cut.started.entries.tolist() == [[0, 2, 3], [0, 1, 3]]
    assert cut.started.hidden[..., 0].tolist() == [[0, 2, 3], [4, 5, 7]]
    again = cut.keep(torch.tensor([[True, True, False], [True, True, True]])).compact(3).take(torch.tensor([1, 0]))
    assert again.started is not None and again.started.entries is not None
    assert again.started.entries[0].tolist() == [0, 1, 3] and again.started.entries[1, :2].tolist() == [0, 2]
    larger = again.started.scatter([0, 2], 3)
    assert larger.sequences == (True, False, True)
    assert larger.hidden[[0, 2]].equal(again.started.hidden)
    for each in (cut.started, again.started, larger):
        assert each.features[1].equal(-each.hidden)
