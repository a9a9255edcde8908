"""What the target says is read through a tree; lists are made of it only when somebody asks."""

import pytest
import torch

from draftwood.core import scored as module
from draftwood.core.outline import Outline
from draftwood.core.passes import Seen
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling import SamplingParams
from draftwood.core.scored import Scored
from draftwood.core.tree import TokenTree

VOCAB = 5


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[TokenTree]:
    """Trees of which lists were made."""
    seen: list[TokenTree] = []

    class Counted(Outline):
        @staticmethod
        def of(tree: TokenTree) -> Outline:
            seen.append(tree)
            return Outline.of(tree)

    monkeypatch.setattr(module, "Outline", Counted)
    return seen


def target(*temperatures: float) -> Scored:
    """A root and one node for each temperature, and a logit row for each."""
    batch = len(temperatures)
    tree = TokenTree.roots(torch.zeros(batch, dtype=torch.int64))
    below = torch.arange(1, batch + 1)[:, None]
    tree = tree.add(torch.zeros_like(below), below, live=below > 0)
    rows = torch.arange(2 * batch)
    logits = torch.randn(2 * batch, VOCAB, generator=torch.Generator().manual_seed(3))
    seen = Seen(logits, torch.zeros(2 * batch, 4), rows, row=rows.view(batch, 2))
    requests = tuple(
        Request(i, [1, 0], SamplingParams(temperature=t, seed=i), VOCAB) for i, t in enumerate(temperatures)
    )
    return Scored(seen, tree, Round(torch.arange(batch), torch.full((batch,), 2), requests))


def test_mixed_batch_draws_without_lists(made):
    scored = target(0.0, 1.0, 0.7)
    nodes, all_rows = torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool)
    said = scored.token(nodes, 1, all_rows)
    for b in range(3):
        assert said[b] == scored.take([b]).over(scored.take([b]).tree).token(nodes[:1], 1, all_rows[:1])[0]
    assert made == []


def test_lists_are_made_once_and_belong_to_the_rows_taken(made):
    part = target(0.0, 1.0, 0.7).take([2, 0])
    assert part.outline.tokens == part.tree.tokens.tolist() == [[0, 3], [0, 1]]
    assert part.outline is part.outline and len(made) == 1
