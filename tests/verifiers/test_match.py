"""Match follows the target's own samples, whatever the tree looks like."""

import torch

from draftwood.core.forward import ForwardOutput
from draftwood.core.proposal import Proposal
from draftwood.core.scored import Scored
from draftwood.core.tree import TokenTree
from draftwood.testing.contracts import toy_round
from draftwood.verifiers.match import Match


def scored(tree: TokenTree, best: list[int], temperature: float = 0.0) -> tuple[Proposal, Scored]:
    """One row whose node i is followed by token best[i]."""
    logits = torch.nn.functional.one_hot(torch.tensor(best), 10).double() * 50
    n = len(best)
    output = ForwardOutput(logits, torch.zeros(n, 1), torch.arange(n), token_index=torch.arange(n)[None])
    rnd = toy_round([[int(tree.tokens[0, 0])]], 10, temperature=temperature)
    return Proposal(tree), Scored(output, tree, rnd)


def tree(*nodes: tuple[int, int]) -> TokenTree:
    made = TokenTree.roots(torch.tensor([1]))
    for parent, token in nodes:
        made = made.add(torch.tensor([[parent]]), torch.tensor([[token]]), live=torch.ones(1, 1).bool(), copies=0)
    return made


def test_the_walk_goes_on_while_the_tree_holds_the_targets_token() -> None:
    made = tree((0, 5), (0, 6), (2, 7), (2, 8))
    for temperature in (0.0, 1.0):
        proposal, target = scored(made, [6, 0, 8, 0, 9], temperature)
        verdict = Match().verify(proposal, target, target.rnd)
        assert verdict.path.tolist() == [[0, 2, 4]] and verdict.count.tolist() == [2]
        assert verdict.next_token.tolist() == [9]


def test_nothing_matches_or_nothing_was_drafted() -> None:
    proposal, target = scored(tree((0, 5)), [3, 0])
    assert Match().verify(proposal, target, target.rnd).next_token.tolist() == [3]
    proposal, target = scored(tree(), [4])
    verdict = Match().verify(proposal, target, target.rnd)
    assert verdict.path.tolist() == [[0]] and verdict.next_token.tolist() == [4]


def test_dead_nodes_are_not_followed() -> None:
    made = tree((0, 6)).keep(torch.tensor([[True, False]]))
    proposal, target = scored(made, [6, 9])
    assert Match().verify(proposal, target, target.rnd).count.tolist() == [0]
