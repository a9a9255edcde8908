"""Timing rules: trees are valid and legal for the rule, the pass is over the same nodes, absent rules are named."""

from pathlib import Path

import pytest
import torch

from draftwood.bench.micro.target_pass import Stage
from draftwood.bench.micro.verifiers import (
    ALL,
    DRAFTS,
    FULL,
    LP,
    NODES,
    PASS,
    Draft,
    Measured,
    Timed,
    World,
    legal,
    measure,
    pass_over,
    verdicts,
)
from draftwood.bench.statistics import Ratio
from draftwood.bench.study.rules.known_distributions import known_rules, round_of
from draftwood.core.legal_draws import RULES, Draw, Shape
from draftwood.core.proposal_checks import faults
from draftwood.core.tree import TokenTree
from draftwood.models.loading.load import load
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.host_reads import as_if_on_a_device
from draftwood.testing.parts.tiny import tiny_decoder
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection


@pytest.fixture(scope="module")
def world() -> World:
    return World(300, 0.95)


@pytest.mark.parametrize("draft", DRAFTS, ids=lambda d: d.name)
def test_drafts_are_valid_and_have_the_stated_size(draft: Draft) -> None:
    made = World(300, 1.0).proposal(draft, 3)  # all tokens: a sharp distribution cut by top-p may hold fewer than seven
    assert not faults(made, round_of(3, 300), 300)
    live = made.tree.live.sum(1)
    if draft.policy.draw is Draw.DISTINCT or draft.policy.shape is Shape.CHAIN:
        assert live.tolist() == [NODES] * 3
    else:
        assert (live <= NODES).all() and (live >= FULL * NODES).all(), (
            "equal draws share a node, so there are more draws"
        )
        assert (torch.where(made.tree.live, made.tree.copies, 0).sum(1) >= live - 1).all()
    assert int(made.tree.depths()[made.tree.live].max()) == draft.depth


def test_every_rule_of_the_table_has_a_draft_and_none_an_illegal_one() -> None:
    for name in RULES:
        fits = [d for d in DRAFTS if legal(name, d)]
        assert fits and all((d.policy.draw, d.policy.shape) in RULES[name] for d in fits), name
    assert not legal("Block", DRAFTS[0]) and legal("Block", Draft(Chain(), 3))


def test_a_node_has_the_target_distribution_that_belongs_to_its_draft(world: World) -> None:
    kept: list[float] = []
    run = world.judge(Rejection(), world.proposal(DRAFTS[3], 8), kept)
    for _ in range(40):
        run()
    overlap = world.describe()["overlap"]
    chance = sum(overlap**i for i in range(1, NODES))  # if acceptance were the same everywhere
    assert sum(kept) / len(kept) == pytest.approx(chance, rel=0.5)
    stray: list[float] = []
    world.logits = world.logits.roll(1, 0)  # the twin: every node beside another's distribution
    try:
        run = world.judge(Rejection(), world.proposal(DRAFTS[3], 8), stray)
        for _ in range(40):
            run()
    finally:
        world.logits = world.logits.roll(-1, 0)
    assert sum(stray) < 0.8 * sum(kept)


def test_the_pass_holds_the_live_nodes_of_all_sequences_and_leaves_the_cache_as_it_was(world: World) -> None:
    class Counted(CpuRunner):
        def execute(self, x, **more):
            seen.append(x.size)
            return CpuRunner.execute(self, x, **more)

    seen: list[int] = []
    stage = Stage(Counted(tiny_decoder()), [6] * 2, NODES)
    seen.clear()
    tree: TokenTree = world.proposal(DRAFTS[1], 2).tree
    pass_over(stage, tree, 6)()
    assert seen == [int(tree.live.sum())]
    assert [stage.target.length(slot) for slot in (0, 1)] == [6, 6]
    stage.target.check_integrity()


def test_a_measurement_has_times_shares_growth_and_the_names_of_absent_rules(folder: Path) -> None:
    loaded = load(str(folder))
    rules = {"Rejection": Rejection(), "Match": Match(), "Block": None}
    found = measure(loaded, [1, 3], context=16, repeats=2, rules=rules)
    assert found.absent == ["Block"]
    kinds = {(row.rule, row.draft) for row in found.rows}
    assert {rule for rule, _ in kinds} == {PASS, "Rejection", "Match"}
    assert all((row.share is None) == (row.rule == PASS) and row.ms > 0 for row in found.rows)
    larger = {(row.rule, row.draft) for row in found.rows if row.batch == 3}
    assert {g.batches for g in found.growth} == {(1, 3)} and {(g.rule, g.draft) for g in found.growth} == larger
    assert {kind for kind in kinds if kind[1].endswith(ALL)} == kinds - larger, "without top-p at one size alone"
    alone = measure(loaded, [1], context=16, repeats=1, rules={"Match": Match()})
    assert not alone.growth and not alone.absent


def test_what_is_built_in_is_timed_and_the_rest_is_absent(folder: Path) -> None:
    found = measure(load(str(folder)), [1], context=16, repeats=1)
    timed = {row.rule for row in found.rows} - {PASS, LP}
    assert timed == {name for name, rule in known_rules().items() if rule is not None}
    assert timed.isdisjoint(found.absent) and timed | {*found.absent} == {*RULES}


def test_a_goal_is_reached_or_the_rules_beyond_it_are_named() -> None:
    def row(rule: str, draft: str, share: float) -> Timed:
        return Timed(rule, draft, 1, 64, 1, 1, 1, Ratio(share, None, None, 1))

    good = [row("Match", "a tree", 0.05), row("Match", "a tree" + ALL, 0.5), row(LP, "a tree", 2.0)]
    assert verdicts(Measured(good, [], [], {}))[0].startswith("reached")
    said = verdicts(Measured([*good, row("Block", "a chain", 0.2)], [], [], {}))[0]
    assert said.startswith("not reached") and said.endswith("beyond it: Block on a chain, 1 sequences")


@pytest.mark.parametrize("draft", DRAFTS, ids=lambda d: d.name)
def test_drafts_of_a_device_are_valid_and_verified(draft: Draft) -> None:
    kept: list[float] = []
    with as_if_on_a_device():
        world = World(300, 1.0)
        made = world.proposal(draft, 2)
        for _ in range(2):
            world.judge(Match(), made, kept)()
    assert not faults(made, round_of(2, 300), 300)
    assert len(kept) == 2 and all(0 <= count < NODES for count in kept)


def test_a_round_is_on_its_device() -> None:
    rnd = round_of(2, 300, device=torch.device("meta"))
    assert rnd.device.type == rnd.slots.device.type == rnd.roots().device.type == "meta"
