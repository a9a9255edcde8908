"""The trees rules are compared on: valid, of one size, and left out where all their draws are the same."""

import pytest
import torch

from draftwood.bench.study.rules.known_distributions import drafted, round_of
from draftwood.bench.study.rules.rule_trees import chosen_trees, trees
from draftwood.core.legal_draws import Draw, Shape, legal_rules
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.errors import OptionError, UnknownNameError

CHAINS = ("chain-4", "chain-8")


@pytest.mark.parametrize("nodes", [8, 16, 24])
def test_trees_have_as_many_draws_or_a_few_less(nodes: int):
    for name, tree in trees(nodes).items():
        if name not in CHAINS:
            assert 0.6 * nodes <= tree.nodes <= nodes, name


@pytest.mark.parametrize("name", list(trees()))
def test_a_draft_fits_its_tree(name: str):
    tree = trees()[name]
    rnd = round_of(2, 400)  # so many that inner nodes are hardly ever drawn twice
    noise = torch.Generator().manual_seed(1)

    def distributions(frontier: torch.Tensor) -> DraftProbs:
        return DraftProbs(torch.softmax(torch.randn(frontier.numel(), 400, generator=noise), 1))

    made = drafted(tree.policy, rnd, tree.depth, tree.nodes, distributions)
    assert bool((made.tree.num_drafted() <= tree.nodes).all()) and bool((made.tree.num_drafted() > 0).all())
    draws = torch.where(made.tree.live, made.tree.copies, 0).sum(1)
    if tree.policy.draw is Draw.GIVEN:
        assert not bool(draws.any())
    elif name not in ("threshold", "best-and-one"):
        assert draws.tolist() == [tree.nodes] * 2  # every draw is there, merged or not
    assert int(made.tree.depths().max()) <= tree.depth


def test_every_kind_of_draft_that_a_rule_is_exact_for_is_there():
    kinds = {(tree.policy.draw, tree.policy.shape) for tree in trees().values()}
    covered = {rule for kind in kinds for rule in legal_rules(*kind)}
    assert covered == {"Traversal", "PathBlock", "Block", "Rejection", "Transport", "Selection", "Match"}
    assert (Draw.IID, Shape.PATHS) in kinds and (Draw.GIVEN, Shape.TREE) in kinds


def test_at_temperature_0_trees_of_independent_draws_have_nothing_to_compare():
    found = {name: tree.at(0.0) for name, tree in trees().items()}
    assert [name for name, policy in found.items() if policy is None] == ["static-iid", "paths", "delayed"]
    assert all(tree.at(0.5) is tree.policy for tree in trees().values())


def test_mistakes_are_refused():
    assert list(chosen_trees(["paths"])) == ["paths"] and len(chosen_trees([])) == len(trees())
    with pytest.raises(UnknownNameError, match="did you mean 'paths'"):
        chosen_trees(["path"])
    with pytest.raises(OptionError, match="nodes"):
        trees(7)
