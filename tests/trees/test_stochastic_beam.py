"""A stochastic beam is a race of whole texts, of which every level keeps the first to arrive."""

import math
import random
from collections import defaultdict
from itertools import product

import pytest
import torch
from scipy.stats import chisquare

from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.errors import OptionError
from draftwood.testing.contracts import check_drafter, check_policy, toy_round
from draftwood.testing.exact import joint_error
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import Conditional, joint, near, random_probs
from draftwood.trees.grow import grow
from draftwood.trees.static import Static
from draftwood.trees.stochastic_beam import StochasticBeam
from small_trees import every_tree, grown, one_round, paths

Tree = tuple[tuple[int, ...], ...]


def race(probs: Conditional, vocab_size: int, depth: int, beam: int) -> dict[Tree, float]:
    """The same trees from the definition: texts of full length drawn without replacement, and every level's first few
    beginnings, in the order in which they were first seen."""
    texts = {text: joint(probs, (0,), text) for text in product(range(vocab_size), repeat=depth)}
    found: dict[Tree, float] = defaultdict(float)

    def draw(left: dict[tuple[int, ...], float], seen: tuple[Tree, ...], prob: float) -> None:
        if not left or all(len(level) == beam for level in seen):
            found[sum(seen, ())] += prob
            return
        for text, rate in left.items():
            rest = {other: r for other, r in left.items() if other != text}
            then = tuple(
                level if text[: d + 1] in level or len(level) == beam else (*level, text[: d + 1])
                for d, level in enumerate(seen)
            )
            draw(rest, then, prob * rate / sum(left.values()))

    draw(texts, ((),) * depth, 1.0)
    return dict(found)


def perturbed(probs: Conditional, vocab_size: int, depth: int, beam: int, rng: random.Random) -> Tree:
    """One tree by perturbed scores, as stochastic beam search is written down."""
    levels: list[tuple[int, ...]] = []
    beams = [((), 0.0, 0.0)]
    for _ in range(depth):
        scored: list[tuple[float, float, tuple[int, ...]]] = []
        for path, phi, top in beams:
            below = [phi + math.log(q) for q in probs((0, *path))]
            noisy = [x - math.log(-math.log(rng.random())) for x in below]
            highest = max(noisy)
            for token, (x, g) in enumerate(zip(below, noisy, strict=True)):
                v = top - g + (math.log1p(-math.exp(g - highest)) if g < highest else -math.inf)
                score = top - max(v, 0.0) - math.log1p(math.exp(-abs(v)))
                scored.append((score, x, (*path, token)))
        scored.sort(reverse=True)
        beams = [(path, x, score) for score, x, path in scored[:beam]]
        levels += [path for path, _, _ in beams]
    return tuple(levels)


def test_the_contracts_hold() -> None:
    check_policy(StochasticBeam(3))
    check_drafter(TableDrafter(random_probs(6, 3)), StochasticBeam(2), 6)
    with pytest.raises(OptionError, match="beam"):
        StochasticBeam(0)


@pytest.mark.parametrize(
    ("vocab_size", "depth", "beam"), [(3, 2, 2), (2, 3, 2), pytest.param(2, 3, 3, marks=pytest.mark.slow), (4, 1, 3)]
)
def test_trees_have_the_distribution_of_a_race_of_whole_texts(vocab_size: int, depth: int, beam: int) -> None:
    probs = random_probs(vocab_size, 5)
    got, want = every_tree(StochasticBeam(beam), probs, vocab_size, depth, 100), race(probs, vocab_size, depth, beam)
    assert got.keys() == want.keys()
    assert max(abs(got[tree] - want[tree]) for tree in want) < 1e-12


def test_perturbed_scores_give_the_same_trees() -> None:
    probs, rng, many = random_probs(3, 5), random.Random(1), 8_000
    exact = every_tree(StochasticBeam(2), probs, 3, 2, 100)
    seen: dict[Tree, int] = defaultdict(int)
    for _ in range(many):
        seen[perturbed(probs, 3, 2, 2, rng)] += 1
    assert seen.keys() <= exact.keys()
    assert chisquare([seen[tree] for tree in exact], [exact[tree] * many for tree in exact]).pvalue > 1e-4


def test_control_a_race_that_forgets_the_texts_outside_the_beam_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    probs = random_probs(3, 5)
    want = race(probs, 3, 2, 2)
    maximum = torch.maximum
    monkeypatch.setattr(torch, "maximum", lambda a, b: b if a.dtype == torch.float64 else maximum(a, b))
    got = every_tree(StochasticBeam(2), probs, 3, 2, 100)
    assert 0.5 * sum(abs(got[tree] - want[tree]) for tree in want) > 0.01


def test_one_level_is_a_draw_without_replacement() -> None:
    probs = random_probs(4, 2)
    beam, plain = every_tree(StochasticBeam(3), probs, 4, 1, 3), every_tree(Static((3,)), probs, 4, 1, 3)
    assert beam.keys() == plain.keys() and max(abs(beam[t] - plain[t]) for t in plain) < 1e-12


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_output_is_the_targets_under_any_budget(nodes: int) -> None:
    probs = random_probs(3, 7)
    found = one_round(StochasticBeam(2), 2, nodes, probs, near(probs, 3, 8, 0.5), vocab_size=3)
    assert joint_error(found, probs, 3, 3) < 1e-12


def test_nodes_without_anything_to_say_do_not_hold_up_the_others() -> None:
    rnd = toy_round([[0]], 4)

    def step(tree: TokenTree, frontier: torch.Tensor) -> tuple[DraftProbs, None]:
        silent = tree.tokens.gather(1, frontier.clamp_min(0)) == 2
        probs = torch.where(silent[..., None], 0.0, torch.tensor([0.0, 0.5, 0.5, 0.0]))
        return DraftProbs(probs.flatten(0, 1)), None

    base = Proposal.roots(rnd.roots())
    for seed in range(8):
        rnd = toy_round([[0]], 4, seed=seed)
        tree = grow(base, Limit.of([2], [9]), StochasticBeam(2), rnd, step).tree
        assert sorted(paths(tree)) == [(1,), (1, 1), (1, 2), (2,)]


def test_rows_end_where_they_end() -> None:
    tree = grown(StochasticBeam(2), random_probs(5, 1), 5, Limit.of([3, 1, 0, 3], [6, 6, 6, 3])).tree
    kept = StochasticBeam(2).select(tree, Limit.of([3, 1, 0, 3], [6, 6, 6, 3]))
    assert kept[:, 1:].sum(1).tolist() == [6, 2, 0, 3]
