"""The walk without host reads and the walk with them come to the same verdict."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from both_paths import OPTIONS, Scene, bare, drafted, same, scene
from draftwood.bench.micro.verifiers import DRAFTS
from draftwood.core.host_tree import HostTree
from draftwood.core.proposal import Proposal
from draftwood.core.tree import AHEAD, PROBE, TokenTree
from draftwood.testing.host_reads import HostReads
from draftwood.verifiers import walk
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

RULES = [Match(), Rejection()]


def rule_name(rule: Any) -> str:
    return type(rule).__name__


def random_tree(seed: int, batch: int = 4, nodes: int = 24) -> TokenTree:
    """Given nodes of all kinds: cut ones, nodes of another pass."""
    noise = torch.Generator().manual_seed(seed)
    tree = TokenTree.roots(torch.arange(batch))
    for i in range(1, nodes):
        tree = tree.add(
            torch.randint(max(0, i - 5), i, (batch, 1), generator=noise),
            torch.full((batch, 1), i),
            live=torch.rand(batch, 1, generator=noise) < 0.9,
            copies=0,
            role=(0, 0, 0, 0, 0, 0, AHEAD, PROBE)[int(torch.randint(8, (), generator=noise))],
        )
    return tree


@pytest.mark.parametrize("seed", range(20))
def test_the_path_along_given_choices_is_that_of_the_lists(seed: int) -> None:
    tree = random_tree(seed)
    noise = torch.Generator().manual_seed(seed)
    choice = torch.randint(0, tree.num_nodes, tree.tokens.shape, generator=noise)
    for b in range(tree.batch):  # most choices are some child's token
        for i in range(1, tree.num_nodes):
            if tree.live[b, i] and torch.rand((), generator=noise) < 0.7:
                choice[b, tree.parents[b, i]] = i
    want = HostTree.of(tree).follow(choice.tolist(), choice.device).to_host()
    for levels in (tree.num_nodes - 1, int((tree.depths() * tree.live).max())):
        with HostReads() as reads:
            found = walk.follow(Proposal(tree, max_depth=levels), choice)
        assert reads.total == 0 and found.path.shape == (tree.batch, levels + 1)
        assert same(found.to_host(), want) and found.count.tolist() == [len(p) - 1 for p in want.paths]


def test_a_path_longer_than_was_said_is_cut_and_what_follows_it_stays_right() -> None:
    tree = TokenTree.roots(torch.tensor([0]))
    for i in range(1, 12):
        tree = tree.add(torch.tensor([[i - 1]]), torch.tensor([[i]]), live=torch.ones(1, 1, dtype=torch.bool), copies=0)
    found = walk.follow(Proposal(tree, max_depth=3), torch.arange(1, 13)[None])
    assert found.to_host().paths == [[0, 1, 2, 3]] and found.next_token.tolist() == [4]


@pytest.mark.one_in(17)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("draft", range(len(DRAFTS)), ids=lambda i: DRAFTS[i].name)
@pytest.mark.parametrize("rule", RULES, ids=rule_name)
def test_verdicts_are_those_of_the_host_without_a_read(
    rule: Any, draft: int, batch: int, options: list[dict[str, Any]]
) -> None:
    here = drafted(draft, batch)
    for seed in range(3):
        found, reads = here.on_device(rule, options, seed)
        assert reads.total == 0, reads.by_name
        assert found.on_host is None and found.path.shape == (batch, here.proposal.levels + 1)
        want = here.on_host(rule, options, seed)
        assert same(found.to_host(), want) and found.count.tolist() == [len(p) - 1 for p in want.paths]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("rule", RULES, ids=rule_name)
def test_bare_roots_are_decoded_without_a_read(rule: Any, batch: int, options: list[dict[str, Any]]) -> None:
    found, reads = bare(batch).on_device(rule, options)
    assert reads.total == 0 and found.path.tolist() == [[0]] * batch and found.count.tolist() == [0] * batch
    assert same(found.to_host(), bare(batch).on_host(rule, options))


@pytest.mark.one_in(7)
@pytest.mark.parametrize("options", [OPTIONS["whole"], OPTIONS["mixed"]], ids=["whole", "mixed"])
@pytest.mark.parametrize("draft", range(3), ids=lambda i: DRAFTS[i].name)
@pytest.mark.parametrize("rule", RULES, ids=rule_name)
def test_level_by_level_comes_to_the_same_verdict_without_a_read(
    rule: Any, draft: int, options: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "_AT_ONCE", 0)
    here = drafted(draft, 8)
    found, reads = here.on_device(rule, options)
    assert reads.total == 0, reads.by_name
    assert found.path.shape == (8, here.proposal.levels + 1) and same(found.to_host(), here.on_host(rule, options))


def test_many_numbers_are_never_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    here, sizes = drafted(0, 8), list[int]()
    target = here.target([{}], 0)

    def choose(nodes: torch.Tensor, depth: Any, where: torch.Tensor) -> torch.Tensor:
        sizes.append(nodes.numel())
        return target.tokens(nodes, depth, where)

    walk.device_walk(here.proposal, target, choose)
    assert sizes == [8 * here.proposal.tree.num_nodes]
    sizes.clear()
    monkeypatch.setattr(walk, "_AT_ONCE", 8 * 64 * 90 // 6 - 1)
    walk.device_walk(here.proposal, target, choose)
    assert sizes == [8] * 6


SPECIAL: list[dict[str, Any]] = [
    {"presence_penalty": 0.8}, {}, {"logit_bias": {3: 4.0}, "top_p": 0.9}, {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 0.0}, {"bad_words": ((5,), (3, 4))}, {"top_k": 9}, {"frequency_penalty": 1.0, "min_p": 0.05},
]  # fmt: skip


@pytest.mark.one_in(5)
@pytest.mark.parametrize("rule", RULES, ids=rule_name)
@pytest.mark.parametrize("draft", [0, 1], ids=lambda i: DRAFTS[i].name)
def test_options_that_follow_a_path_may_read_and_come_to_the_same_verdict(rule: Any, draft: int) -> None:
    here = drafted(draft, 8)
    for seed in range(3):
        assert same(here.on_device(rule, SPECIAL, seed)[0].to_host(), here.on_host(rule, SPECIAL, seed))


@pytest.mark.parametrize("rule", RULES, ids=rule_name)
def test_given_nodes_and_drawn_ones_side_by_side(rule: Any) -> None:
    """Sequences of which nothing was drawn, as of greedy ones, and given children of drawn nodes."""
    whole = drafted(0, 8).proposal
    tree = whole.tree
    given = torch.zeros_like(tree.live)
    given[3] = True
    given[:, 40:] = True  # leaves and some of their parents
    q_index = torch.where(given & (torch.arange(8) == 3)[:, None], -1, whole.q_indices())
    here = scene(replace(whole, tree=replace(tree, copies=torch.where(given, 0, tree.copies)), q_index=q_index))
    for seed in range(4):
        found, reads = here.on_device(rule, OPTIONS["mixed"], seed)
        assert reads.total == 0 and same(found.to_host(), here.on_host(rule, OPTIONS["mixed"], seed))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_any_tree_of_given_nodes_is_followed_alike(seed: int, temperature: float) -> None:
    tree = random_tree(seed)
    made = scene(Proposal(tree))
    logits = torch.full((tree.batch * tree.num_nodes, 40), -30.0)
    noise = torch.Generator().manual_seed(seed)
    for b in range(tree.batch):
        for i in range(tree.num_nodes):
            below = [n for n in range(1, tree.num_nodes) if tree.live[b, n] and tree.parents[b, n] == i]
            logits[b * tree.num_nodes + i, [*below, 39]] = torch.randn(len(below) + 1, generator=noise)
    place = torch.arange(len(logits)).view_as(tree.tokens)
    here = Scene(made.proposal, logits, place)
    for coins in range(4):
        found, reads = here.on_device(Match(), [{"temperature": temperature}], coins)
        want = here.on_host(Match(), [{"temperature": temperature}], coins)
        assert reads.total == 0 and same(found.to_host(), want)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {}, {"top_p": 0.7}], ids=str)
@pytest.mark.parametrize("rule", RULES, ids=rule_name)
def test_logits_that_are_not_numbers_leave_no_token(rule: Any, options: dict[str, Any]) -> None:
    here = drafted(0, 2)
    logits = here.logits.clone()
    logits[here.place[1, 0]] = torch.nan
    broken = replace(here, logits=logits)
    found = broken.on_device(rule, [options])[0].to_host()
    assert found.after[1] == -1 and found.after[0] >= 0 and same(found, broken.on_host(rule, [options]))
