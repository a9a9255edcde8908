"""Shipped rules on distributions that are given: what is drafted and judged is what the distributions say."""

import torch

from draftwood.bench.study.rules.known_distributions import drafted, known_rules, round_of, scored
from draftwood.core.legal_draws import RULES, Draw
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection


def test_rules_are_found_by_the_names_of_the_table_and_absent_ones_are_none():
    found = known_rules()
    assert list(found) == list(RULES)
    assert isinstance(found["Match"], Match) and isinstance(found["Rejection"], Rejection)
    for name, rule in found.items():
        assert rule is None or (type(rule).__name__, rule.draws, rule.shapes) == (
            name,
            RULES[name].draws,
            RULES[name].shapes,
        )


def test_a_name_without_a_file_is_no_rule(monkeypatch):
    monkeypatch.setitem(RULES, "NoSuchRule", RULES["Match"])
    assert known_rules()["NoSuchRule"] is None


def test_a_target_of_given_distributions_returns_them():
    p = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.0, 0.5, 0.5, 0.0]])
    rnd = round_of(2, 4, seed=3)
    made = drafted(
        Static((2, 1), Draw.DISTINCT), rnd, 2, 4, lambda nodes: DraftProbs(p.repeat_interleave(nodes.shape[1], 0))
    )
    tree = made.tree
    assert tree.batch == 2 and tree.live[0].sum() == 5
    place = torch.arange(2)[:, None].expand(-1, tree.num_nodes)
    seen = scored(p.log(), place, tree, rnd)
    assert torch.allclose(seen.probs(torch.tensor([1, 2])).dense()[1], p[1])


def test_every_sequence_and_every_round_has_a_seed_of_its_own():
    seeds = [r.params.seed for seed in range(3) for r in round_of(4, 8, seed=seed).requests]
    assert len(set(seeds)) == 12
