"""Chains judged from distributions that lie one behind the other come out as from tables."""

import pytest
import torch

from draftwood.core.sampling.support import Few
from draftwood.testing.table_model import TableModel, near, random_probs
from draftwood.trees.chain import Chain
from draftwood.verifiers import line
from draftwood.verifiers.block import Block
from token_rules import recipe_of, texts

ASKED = [([1, 2], 30, 1.0), ([3], 20, 0.7), ([4, 4, 1], 25, 1.0)]


def said(top_p: float) -> list[list[int]]:
    probs = random_probs(9, 1)
    return texts(TableModel(9, probs), recipe_of(Block(), Chain(), near(probs, 9, 2, 0.5), 5, 5), ASKED, top_p)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which kind of distributions chains were judged from."""
    seen: list[str] = []
    real = line.pairs_at

    def pairs_at(*given: object) -> object:
        made = real(*given)  # type: ignore[arg-type]
        seen.append(type(made).__name__)
        return made

    monkeypatch.setattr("draftwood.verifiers.block.pairs_at", pairs_at)
    return seen


def test_tables_and_lists_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = counted(monkeypatch)
    lists = said(top_p=0.8)
    assert set(seen) == {"Lists"}
    seen.clear()
    monkeypatch.setattr("draftwood.core.sampling.shaping.Shaping.support", lambda *_, **__: None)
    monkeypatch.setattr("draftwood.core.sampling.support.likeliest", lambda *_: None)
    assert said(top_p=0.8) == lists and set(seen) == {"Tables"}


def test_control_a_list_that_forgets_what_the_draft_has_says_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    right = said(top_p=0.8)
    monkeypatch.setattr(line.Lists, "missing", lambda self, w: w)
    assert said(top_p=0.8) != right


def test_nothing_is_missing_where_p_and_q_agree_and_p_serves() -> None:
    p = torch.tensor([[0.5, 0.5], [0.2, 0.8]])
    rest = line.missing(torch.ones(2, dtype=torch.float64), p, torch.tensor([[0.5, 0.5], [0.1, 0.9]]))
    assert torch.equal(line.unless_empty(rest, p), torch.stack([p[0], rest[1]])) and rest[1, 0] > 0 == rest[1, 1]


def test_short_distributions_are_asked_for_by_the_thousand_and_broad_ones_are_not() -> None:
    def lists(rows: int, width: int) -> line.Lists:
        none = torch.zeros(rows * width)
        return line.Lists(
            Few(none, none.long(), torch.full((rows,), width), width), none.long(), none, *torch.zeros(2, rows)
        )

    assert line.at_once(None) == line.at_once(lists(4, 2**15)) == 64
    assert line.at_once(lists(4, 2**9)) == 2**11
