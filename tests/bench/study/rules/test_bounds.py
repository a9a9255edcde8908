"""Rules on the positions of real answers: pairs are what target and drafter said, and no rule beats its bound."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood.bench.study.rules.bounds import (
    BEST_DISTINCT,
    BEST_IID,
    IID,
    Pairs,
    Recording,
    compare,
    draw,
    exceeds,
    record,
    sampled,
)
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.errors import OptionError
from draftwood.models.loading.load import Loaded, load
from draftwood.testing.contracts import Always
from draftwood.testing.exact import leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, context_free
from draftwood.trees.chain import Chain
from draftwood.verifiers.formulas import rates
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

P, Q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)
DRAFT = "speculative_sampling:draft=first:1"


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Loaded:
    return load(str(folder), dtype="float32")


def fixture_pairs(rows: int = 1) -> Pairs:
    return Pairs(torch.tensor([P] * rows), torch.tensor([Q] * rows), tuple(i % 4 for i in range(rows)))


def test_pairs_are_the_distributions_at_positions_that_the_rule_reached():
    made: list[Recording] = []

    def recipe() -> Recipe:
        made.append(Recording(Rejection(), most=8))
        return Recipe(drafter=TableDrafter(context_free(Q)), policy=Chain(), verifier=made[-1], controller=Always(2, 2))

    leaves(TableModel(4, context_free(P)), recipe, width=1)
    kept = [book for book in made if book.p]
    assert {len(book.p) for book in kept} == {1, 2}  # the first draw rejected: one position; kept: two
    for book in kept:
        for p, q in zip(book.p, book.q, strict=True):
            assert p.tolist() == pytest.approx(P) and q.tolist() == pytest.approx(Q)


def test_recording_can_be_repeated_and_takes_evenly_from_all_prompts(loaded: Loaded):
    prompts = [[1, 2, 3], [4, 5], [6]]
    pairs = record(loaded, DRAFT, prompts, temperature=0.7, positions=9, max_tokens=12)
    assert pairs.p.shape == pairs.q.shape == (9, loaded.info.vocab_size)
    assert [pairs.prompt.count(i) for i in range(3)] == [3, 3, 3]
    for probs in (pairs.p, pairs.q):
        assert torch.allclose(probs.sum(1), torch.ones(9), atol=1e-5)
    again = record(loaded, DRAFT, prompts, temperature=0.7, positions=9, max_tokens=12)
    assert torch.equal(again.p, pairs.p)
    hotter = record(loaded, DRAFT, prompts, temperature=2.0, positions=9, max_tokens=12)
    assert float(hotter.p.amax(1).mean()) < float(pairs.p.amax(1).mean())


def test_rules_and_bounds_are_in_one_table(loaded: Loaded):
    pairs = record(loaded, DRAFT, [[1, 2, 3], [4, 5]], temperature=1.0, positions=8, max_tokens=12)
    found = compare(pairs, [1, 2, 3], 1.0, trials=3)
    lines = {line.name: line for line in found.lines}
    assert not found.above and found.pairs == 8 and found.prompts == 2
    for k in (1, 2):
        assert lines["rejection"].kept[k].value <= lines[BEST_IID].kept[k].value + 1e-7
        assert lines[BEST_IID].kept[k].value <= lines[BEST_DISTINCT].kept[k].value + 1e-7
        assert lines["rejection, distinct"].kept[k].value <= lines[BEST_DISTINCT].kept[k].value + 1e-7
    assert lines["rejection, distinct"].sampled == (3,) and lines["rejection"].sampled == ()
    assert lines["rejection"].kept[1].value == pytest.approx(lines["rejection, distinct"].kept[1].value)


def test_a_sample_of_the_shipped_rule_has_its_acceptance():
    pairs = fixture_pairs(2000)
    two = float(sampled(Rejection(), Draw.DISTINCT, pairs, 2, 2).mean())
    assert two == pytest.approx(107 / 140, abs=4 * (0.25 / 4000) ** 0.5)
    three = float(sampled(Rejection(), Draw.DISTINCT, pairs, 3, 2).mean())
    assert three == pytest.approx(0.840298, abs=4 * (0.25 / 4000) ** 0.5)
    assert float(sampled(Match(), Draw.IID, pairs, 2, 2).mean()) == pytest.approx(0.35, abs=0.032)


def test_what_exceeds_its_bound_is_named(monkeypatch: pytest.MonkeyPatch):
    assert not compare(fixture_pairs(4), [1, 2], 1.0).above
    monkeypatch.setitem(  # rho = 1: every draw judged as if it were the only one, which is not exact
        IID,
        "transport",
        lambda p, q, k: 1 - (1 - rates.rejection_iid(p, q, 1)) ** k,
    )
    assert compare(fixture_pairs(4), [1, 2], 1.0).above == ("transport with 2 siblings",)


def test_a_sample_exceeds_a_bound_only_beyond_chance():
    bound = torch.full((100,), 0.5, dtype=torch.float64)
    assert not exceeds(bound + 0.05, bound, trials=4) and exceeds(bound + 0.2, bound, trials=4)
    assert exceeds(bound + 0.05, bound) and not exceeds(bound, bound)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"temperature": 0.0}, "temperature cannot be 0\nhint: above 0"),
        ({"prompts": []}, "no prompts"),
        ({"recipe": "prompt_lookup"}, "draws from no distribution"),
        ({"max_tokens": 1}, "nothing was drafted"),
    ],
)
def test_what_cannot_be_compared_is_refused(loaded: Loaded, change: dict[str, Any], said: str):
    given: dict[str, Any] = {"recipe": DRAFT, "prompts": [[1, 2]], "temperature": 1.0, "max_tokens": 8, **change}
    with pytest.raises(OptionError, match=said):
        record(loaded, given.pop("recipe"), given.pop("prompts"), **given)
    with pytest.raises(OptionError, match=r"k cannot be \[0\]"):
        compare(replace(fixture_pairs(), prompt=(0,)), [0], 1.0)


# --- the figure

FOUND = compare(Pairs(torch.tensor([[0.4, 0.6]]), torch.tensor([[0.7, 0.3]]), (0,)), [1, 2], 0.5)


def test_every_line_and_temperature_is_in_the_picture(tmp_path: Path):
    pytest.importorskip("matplotlib")
    path = draw([FOUND, FOUND], tmp_path / "b.svg")
    assert path is not None and path.read_text().count("temperature 0.5") >= 2


def test_without_matplotlib_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert draw([FOUND], tmp_path / "b.svg") is None and not list(tmp_path.iterdir())
