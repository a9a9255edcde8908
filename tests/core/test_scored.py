"""What the target says is read through a tree; lists are made of it only when somebody asks."""

import pytest
import torch

from draftwood.core import scored as module
from draftwood.core.forward import ForwardOutput
from draftwood.core.host_tree import HostTree
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.scored import Scored
from draftwood.core.tree import TokenTree

VOCAB = 5


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[TokenTree]:
    """Trees of which lists were made."""
    output: list[TokenTree] = []

    class Counted(HostTree):
        @staticmethod
        def of(tree: TokenTree) -> HostTree:
            output.append(tree)
            return HostTree.of(tree)

    monkeypatch.setattr(module, "HostTree", Counted)
    return output


def target(*temperatures: float, top_p: float = 1.0) -> Scored:
    """A root and one node for each temperature, and a logit row for each."""
    batch = len(temperatures)
    tree = TokenTree.roots(torch.zeros(batch, dtype=torch.int64))
    below = torch.arange(1, batch + 1)[:, None]
    tree = tree.add(torch.zeros_like(below), below, live=below > 0)
    rows = torch.arange(2 * batch)
    logits = torch.randn(2 * batch, VOCAB, generator=torch.Generator().manual_seed(3))
    output = ForwardOutput(logits, torch.zeros(2 * batch, 4), rows, token_index=rows.view(batch, 2))
    requests = tuple(
        Request(i, [1, 0], SamplingParams(temperature=t, seed=i, top_p=top_p if i else 1.0), VOCAB)
        for i, t in enumerate(temperatures)
    )
    return Scored(output, tree, Round(torch.arange(batch), torch.full((batch,), 2), requests))


def test_mixed_batch_draws_without_lists(made):
    scored = target(0.0, 1.0, 0.7)
    nodes, all_rows = torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool)
    said = scored.token(nodes, 1, all_rows)
    for b in range(3):
        assert said[b] == scored.take([b]).over(scored.take([b]).tree).token(nodes[:1], 1, all_rows[:1])[0]
    assert made == []


def test_lists_are_made_once_and_belong_to_the_rows_taken(made):
    part = target(0.0, 1.0, 0.7).take([2, 0])
    assert part.host_tree.tokens == part.tree.tokens.tolist() == [[0, 3], [0, 1]]
    assert part.host_tree is part.host_tree and len(made) == 1


def test_the_whole_round_decides_over_which_columns_some_rows_are_told():
    mixed, cut = (
        target(1.0, 1.0, 1.0, top_p=0.6),
        target(0.0, 1.0, 1.0, top_p=0.6),
    )
    rows, nodes = torch.tensor([1, 2]), torch.tensor([1, 0])
    assert mixed.support_of(rows, nodes).ids is None and cut.support_of(rows, nodes).ids is not None
    for scored in (mixed, cut):
        told = scored.support_of(rows, nodes).dense()
        assert torch.allclose(
            told, torch.stack([scored.probs(nodes.new_tensor([[0], [1], [0]]))[b, 0] for b in (1, 2)])
        )
