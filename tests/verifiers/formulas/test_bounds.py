"""The best any rule could do: the fixtures' numbers, all sets of small vocabularies, and no shipped rule above it."""

from collections.abc import Sequence
from itertools import combinations, permutations
from time import perf_counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.errors import OptionError
from draftwood.testing.contracts import Always
from draftwood.testing.exact import acceptance, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, context_free
from draftwood.trees.static import Static
from draftwood.verifiers.formulas import bounds, rates
from draftwood.verifiers.formulas.bounds import best_distinct, best_iid
from draftwood.verifiers.match import Match

P, Q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)


def row(probs: Sequence[float]) -> Tensor:
    return torch.tensor([probs], dtype=torch.float64)


def random_pair(vocab_size: int, seed: int, sharpness: float) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(seed)
    p, q = torch.softmax(sharpness * torch.randn(2, 1, vocab_size, generator=noise, dtype=torch.float64), -1)
    return p, q


def over_all_sets(p: Sequence[float], q: Sequence[float], k: int, draw: Draw) -> float:
    """The definition, word for word: every set of tokens, every order of draws."""
    drawable = [i for i, x in enumerate(q) if x > 0]
    drafts: dict[frozenset[int], float] = {}
    for first in permutations(drawable, min(k, len(drawable))):
        prob = 1.0
        for turn, token in enumerate(first):
            prob *= q[token] / sum(q[i] for i in drawable if i not in first[:turn])
        drafts[frozenset(first)] = drafts.get(frozenset(first), 0.0) + prob

    def inside(held: set[int]) -> float:
        if draw is Draw.IID:
            return sum(q[i] for i in held) ** k
        return sum(prob for draft, prob in drafts.items() if draft <= held)

    sets = (set(s) for size in range(len(p) + 1) for s in combinations(range(len(p)), size))
    return 1 + min(sum(p[i] for i in held) - inside(held) for held in sets)


def test_fixture_a_is_reproduced() -> None:
    assert best_iid(row(P), row(Q), 4)[0].tolist() == pytest.approx([0.6, 0.79, 0.871, 0.9439], abs=1e-9)
    assert best_distinct(row(P), row(Q), 4)[0].tolist() == pytest.approx([0.6, 701 / 840, 1, 1], abs=1e-9)


@given(st.integers(1, 6), st.integers(0, 2**31), st.sampled_from([0.3, 1.0, 3.0, 8.0]), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_no_set_of_tokens_is_lower_than_the_best_prefix(vocab_size: int, seed: int, sharpness: float, k: int) -> None:
    p, q = random_pair(vocab_size, seed, sharpness)
    for draw, best in ((Draw.IID, best_iid), (Draw.DISTINCT, best_distinct)):
        want = over_all_sets(p[0].tolist(), q[0].tolist(), k, draw)
        assert float(best(p, q, k)[0, k - 1]) == pytest.approx(want, abs=2e-9)


def test_control_another_order_of_tokens_misses_the_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_by_ratio", lambda p, q: (p, q))
    assert float(best_iid(row(P), row(Q), 2)[0, 1]) > 0.79 + 0.1
    assert float(best_distinct(row(P), row(Q), 2)[0, 1]) > 701 / 840 + 0.1


@given(st.integers(2, 5), st.integers(0, 2**31), st.sampled_from([0.5, 2.0]))
@settings(max_examples=30, deadline=None)
def test_more_draws_and_distinct_draws_never_lower_it(vocab_size: int, seed: int, sharpness: float) -> None:
    p, q = random_pair(vocab_size, seed, sharpness)
    iid, distinct = best_iid(p, q, 4)[0], best_distinct(p, q, 4)[0]
    assert (iid.diff() > -1e-9).all() and (distinct.diff() > -1e-9).all()
    assert (iid <= distinct + 1e-9).all() and (distinct <= 1).all()
    assert float(iid[0]) == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-9)


def test_control_drafts_that_know_the_target_would_be_above_the_bound() -> None:
    p, q = row((0.5, 0.5, 0.0, 0.0)), row(Q)
    knowing = enumerated(Match(), p, p, 2, Draw.DISTINCT)  # drawn from p, and called q
    assert knowing > float(best_distinct(p, q, 2)[0, 1]) + 0.1


def enumerated(verifier: Any, p: Tensor, q: Tensor, k: int, draw: Draw) -> float:
    """Acceptance of the rule itself in the engine itself."""

    def recipe() -> Recipe:
        drafter = TableDrafter(context_free(q[0].tolist()))
        return Recipe(drafter=drafter, policy=Static((k,), draw), verifier=verifier, controller=Always(1, k))

    return acceptance(leaves(TableModel(p.shape[1], context_free(p[0].tolist())), recipe))


def test_rows_are_judged_each_for_itself() -> None:
    pairs = [random_pair(6, seed, 2.0) for seed in range(4)]
    p, q = (torch.cat(x) for x in zip(*pairs, strict=True))
    for best in (best_iid, best_distinct):
        alone = torch.cat([best(*pair, 4) for pair in pairs])
        assert torch.allclose(best(p, q, 4), alone, atol=1e-12)


@pytest.mark.parametrize(
    ("p", "q", "iid", "distinct"),
    [
        (P, P, (1, 1, 1), (1, 1, 1)),
        ((0.5, 0.5, 0, 0), (0, 0, 0.5, 0.5), (0, 0, 0), (0, 0, 0)),
        ((1, 0, 0, 0), Q, (0.1, 0.19, 0.271), None),
        ((0.25,) * 4, (1, 0, 0, 0), (0.25, 0.25, 0.25), (0.25, 0.25, 0.25)),
        ((0.25,) * 4, (0.5, 0.5, 0, 0), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    ],
    ids=["equal", "disjoint", "certain target", "certain draft", "two tokens"],
)
def test_distributions_at_the_edges(p: Any, q: Any, iid: Any, distinct: Any) -> None:
    assert best_iid(row(p), row(q), 3)[0].tolist() == pytest.approx(iid, abs=1e-9)
    got = best_distinct(row(p), row(q), 3)[0].tolist()
    want = distinct or [over_all_sets(p, q, k, Draw.DISTINCT) for k in (1, 2, 3)]
    assert got == pytest.approx(want, abs=1e-9)


def test_what_an_almost_certain_draft_leaves_still_counts() -> None:
    # The second draw chooses among masses of 1e-13: differences from 1 would not see them.
    p, q = (0.2, 0.2, 0.6), (1 - 4e-13, 3e-13, 1e-13)
    got = best_distinct(row(p), row(q), 3)[0].tolist()
    assert got[1] == pytest.approx(1 + 0.4 - 0.75, abs=1e-6)


def test_chunks_left_out_and_looked_into_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = random_pair(1500, 3, 2.0)
    quick = best_distinct(p, q, 5)
    monkeypatch.setattr(bounds, "ENOUGH", -torch.inf)  # nothing is left out
    assert torch.allclose(best_distinct(p, q, 5), quick, atol=3e-9)


def test_a_real_vocabulary_takes_well_under_a_second() -> None:
    noise = torch.Generator().manual_seed(0)
    logits = 3.0 * torch.randn(1, 49_152, generator=noise)
    p = torch.softmax(logits, -1)
    q = torch.softmax(logits + torch.randn(1, 49_152, generator=noise), -1)
    start = perf_counter()
    iid, distinct = best_iid(p, q, 8), best_distinct(p, q, 8)
    assert perf_counter() - start < 5  # a third of a second where nobody else is
    assert (distinct.diff() > 0).all() and (distinct[:, 1:] > iid[:, 1:]).all()
    assert float(rates.greedy(p, q, 1)) == pytest.approx(float(iid[0, 0]), abs=1e-9)


@pytest.mark.parametrize("best", [best_iid, best_distinct])
def test_what_is_no_question_is_refused(best: Any) -> None:
    with pytest.raises(OptionError, match="k cannot be 0"):
        best(row(P), row(Q), 0)
    with pytest.raises(OptionError, match=r"p has shape \(0, 4\), q \(0, 4\)"):
        best(row(P)[:0], row(Q)[:0], 2)
    with pytest.raises(OptionError, match="q has a row that is no distribution"):
        best(row(P), row((0.5, 0.5, 0.5, 0)), 2)
    with pytest.raises(OptionError, match="p has a row that is no distribution"):
        best(row((1.5, -0.5, 0, 0)), row(Q), 2)
