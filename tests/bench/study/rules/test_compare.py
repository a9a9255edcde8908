"""Rules by trees: figures are those of the rounds, pairs are pairs, and what exceeds the bound is found."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import recipes
from draftwood.bench.statistics import Ratio
from draftwood.bench.study.rules import first_level
from draftwood.bench.study.rules.compare import (
    COUNTED,
    LOOSE,
    LP,
    Cell,
    able_rules,
    all_rules,
    chosen_rules,
    claim,
    faults,
    left_out,
    measure,
    summary,
)
from draftwood.bench.study.rules.paired_runs import Judged, PairedRound, Root
from draftwood.bench.study.rules.rule_trees import Tree, trees
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Drafter
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict
from draftwood.errors import OptionError, UnknownNameError
from draftwood.models.loading.load import Loaded, load
from draftwood.runners.open import runner_of
from draftwood.trees.chain import Chain
from planted_rules import Everything

DRAFT = "speculative_sampling:draft=first:1"
P, Q = torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25])


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Loaded:
    return load(str(folder), dtype="float32")


@pytest.fixture
def cell(loaded: Loaded) -> Any:
    drafter: tuple[str, Drafter] = (DRAFT, recipes.drafter(DRAFT, runner_of(loaded)))

    def make(tree: str, temperature: float = 1.0, **options: Any) -> Cell:
        given: dict[str, Any] = {"max_tokens": 14, "trials": 2, "every": 2, "rules": all_rules(), **options}
        asked = [[1, 2, 3], [4, 5]]
        found = measure(loaded, drafter, (tree, trees(8)[tree]), temperature, asked, given.pop("rules"), **given)
        assert found is not None
        return found

    return make


DEAR = [
    pytest.param(tree, marks=pytest.mark.slow) for tree in ("static", "delayed")
]  # the others hold their rules and draws


@pytest.mark.parametrize("tree", ["chain-4", *DEAR, "paths", "heap", "best-and-one", "best-first"])
def test_all_exact_rules_judge_and_none_exceeds_the_bound(cell, tree: str):
    found = cell(tree)
    assert not faults([found]) and found.bound is not None and found.roots >= min(found.rounds // 2, LOOSE)
    assert found.lines[0].rule == ("Match" if found.draw == "given" else "Rejection")
    assert [line.over is None for line in found.lines] == [True] + [False] * (len(found.lines) - 1)
    for line in found.lines:
        assert 1 <= line.tokens.value <= 1 + found.depth and 0 <= line.first.value <= 1 and line.ms > 0
        assert line.path is not None and line.path.value == pytest.approx((line.tokens.value - 1) / found.depth)
        if line.expected is not None:
            assert line.expected <= found.bound.value + 1e-6


def test_runs_can_be_repeated_but_for_their_times(cell):
    first, again = (cell("static-iid", max_tokens=6) for _ in range(2))
    kept = [[(line.rule, line.tokens, line.over, line.first) for line in each.lines] for each in (first, again)]
    assert kept[0] == kept[1] and first.bound == again.bound


@pytest.mark.parametrize(
    ("tree", "rules"),
    [
        (
            "chain-4",
            ["Rejection", "Traversal", "PathBlock", "Block", "Transport", "Selection", "Match"],
        ),
        ("static", ["Rejection", "Traversal", "Match"]),
        ("static-iid", ["Rejection", "Traversal", "Transport", "Selection", "Match"]),
        ("paths", ["Rejection", "Traversal", "PathBlock", "Transport", "Selection", "Match", COUNTED]),
        ("best-first", ["Match"]),
    ],
)
def test_only_rules_that_are_exact_for_a_tree_judge_it(tree: str, rules: list[str]):
    policy = trees()[tree].policy
    assert list(able_rules(all_rules(), policy, 1.0)) == rules
    assert list(able_rules(all_rules(), policy, 0.0)) == ["Match"]


def test_the_deciding_rule_is_always_included():
    assert set(chosen_rules(["Block"])) == {"Block", "Rejection", "Match"}
    assert LP in all_rules(lp=True) and LP not in all_rules()
    with pytest.raises(UnknownNameError, match="did you mean 'Block'"):
        chosen_rules(["Blok"])
    with pytest.raises(UnknownNameError, match="did you mean 'Traversal'"):
        chosen_rules(["TRAVERSL"])


def test_rules_may_be_spelt_in_any_case():
    for spelling in ("block", "BLOCK", "Block"):
        assert chosen_rules([spelling]).keys() == chosen_rules(["Block"]).keys()
    assert {"PathBlock", "PathBlock:counted"} <= chosen_rules(["path_block", "pathblock:counted"]).keys()


def test_at_temperature_0_shapes_are_compared_and_nothing_is_bounded(cell, loaded: Loaded):
    found = cell("static", 0.0)
    assert [line.rule for line in found.lines] == ["Match"] and found.bound is None and found.draw == "distinct"
    drafter = (DRAFT, recipes.drafter(DRAFT, runner_of(loaded)))
    assert measure(loaded, drafter, ("paths", trees()["paths"]), 0.0, [[1]], all_rules()) is None


def test_a_rule_that_accepts_everything_is_found(cell):
    planted = {**chosen_rules(["Rejection"]), "Traversal": Everything()}
    found = cell("chain-4", rules=planted, max_tokens=40, trials=1, every=1)
    assert found.above == ("Traversal",) and found.exceeded == 0
    assert faults([found]) == [f"chain-4, {DRAFT}, temperature 1: Traversal accepted more than chance allows"]


def test_a_formula_above_the_bound_is_found_root_by_root(cell, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(first_level.IID, "Transport", lambda p, q, k: torch.ones(1))
    found = cell("paths", max_tokens=6)
    assert found.exceeded == found.roots > 0 and found.above == ()
    assert "positions by formula" in faults([found])[0]


def looked(kept: dict[str, tuple[int, ...]], seconds: float = 0.002, root: Root | None = None) -> PairedRound:
    return PairedRound(2, 2, {name: Judged(each, seconds) for name, each in kept.items()}, root, pass_seconds=0.01)


def test_figures_are_those_of_the_rounds():
    rounds = [
        looked({"Rejection": (0, 2), "Block": (2, 2)}, root=Root(P, Q, 1, ())),
        looked({"Rejection": (1, 1), "Block": (1, 2)}),
        looked({"Rejection": (0, 0), "Block": (0, 1)}, seconds=0.004),
    ]
    tree = Tree(Chain(), 2, 2)
    found = summary("d", ("chain", tree), 1.0, Chain(), rounds, [0, 0, 1])
    rejection, block = found.lines
    assert rejection.tokens.value == pytest.approx(1 + 2 / 3) and block.tokens.value == pytest.approx(1 + 4 / 3)
    assert rejection.over is None and block.over is not None
    assert block.over.value == pytest.approx((7 / 3) / (5 / 3))
    assert block.over.low == pytest.approx(5.5 / 4) and block.over.high == pytest.approx(1.5 / 1)
    assert rejection.first.value == pytest.approx(0.5) and block.first.value == pytest.approx(2.5 / 3)
    assert rejection.ms == pytest.approx(2) and found.pass_ms == pytest.approx(10)
    assert rejection.share is not None and rejection.share.value == pytest.approx(0.3)  # median of 0.2 and 0.4
    assert found.bound is not None and found.bound.value == rejection.expected == pytest.approx(0.75)


def test_the_claim_counts_cells_whose_interval_reaches_1():
    rounds = [looked({"Rejection": (1,), "Traversal": (1,)}), looked({"Rejection": (0,), "Traversal": (1,)})]
    good = summary("d", ("chain", Tree(Chain(), 2, 2)), 0.7, Chain(), rounds, [0, 1])
    line = good.lines[1]
    within = replace(good, lines=(good.lines[0], replace(line, over=Ratio(0.95, 0.9, 1.01, 2))))
    below = replace(good, lines=(good.lines[0], replace(line, over=Ratio(0.95, 0.9, 0.99, 2))))
    assert claim([good, within]).good == claim([good, within]).cells == 2
    said = claim([good, within, below])
    assert (said.cells, said.good) == (3, 2) and said.below == ("Traversal on chain, d, temperature 0.7: 0.950",)


def test_what_cannot_be_compared_is_refused(cell, loaded: Loaded):
    lookup = ("prompt_lookup", recipes.drafter("prompt_lookup", runner_of(loaded)))
    with pytest.raises(OptionError, match="cannot fill the tree paths"):
        measure(loaded, lookup, ("paths", trees()["paths"]), 1.0, [[1]], all_rules())
    with pytest.raises(OptionError, match="no prompts"):
        measure(loaded, lookup, ("paths", trees()["paths"]), 1.0, [], all_rules())
    with pytest.raises(OptionError, match="nothing was drafted"):
        cell("paths", max_tokens=1)


def test_a_rule_that_breaks_ends_the_cell(cell, monkeypatch: pytest.MonkeyPatch):
    def broken(self: Everything, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        raise RuntimeError("no such distribution")

    monkeypatch.setattr(Everything, "verify", broken)
    with pytest.raises(OptionError, match="no such distribution"):
        cell("static", rules={**all_rules(), "Traversal": Everything()})


def test_a_pairing_that_is_not_exact_is_named_and_a_rule_without_a_tree_refused():
    known = trees()
    some = {name: known[name] for name in ("chain-4", "static", "best-first")}
    assert left_out(["block"], some) == [
        "left out: Block on static; exact there: Rejection, Traversal, Match",
        "left out: Block on best-first; exact there: Match",
    ]
    assert left_out(["Match"], some) == left_out([], some) == []
    with pytest.raises(OptionError, match=r"Transport is not exact on static(.|\n)*trees for it: chain-4"):
        left_out(["Transport"], {"static": known["static"]})
