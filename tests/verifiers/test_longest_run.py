"""The rule that looks ahead to choose: what it costs in exactness, to the digit, and what it does in a round."""

from typing import Any

import pytest
import torch

from draftwood.core.recipe import Recipe
from draftwood.core.sampling.probs import TokenProbs
from draftwood.drafters.target_roots import TargetRoots
from draftwood.errors import CompositionError
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.contracts import Always
from draftwood.testing.exact import Leaf, joint_error, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import Conditional, TableModel, context_free, near, random_probs
from draftwood.trees.static import Static
from draftwood.verifiers.longest_run import LongestRun
from draftwood.verifiers.rejection import Rejection

START = 2  # a token that only begins


def table(after_start: Any, after_zero: Any, after_one: Any) -> Conditional:
    """Text 0 is followed by START for certain, START by the first distribution, its two tokens by the others."""

    def probs(text: tuple[int, ...]) -> Any:
        size, last = len(text), text[-1]
        if size == 1:
            return (0.0, 0.0, 1.0)
        return {START: after_start, 0: after_zero, 1: after_one}[last] if size < 4 else (1.0, 0.0, 0.0)

    return probs


# Two tokens that the target would draw with .7 and .3. What the draft says after them is kept with .4 and .9.
P = table((0.7, 0.3, 0.0), (0.4, 0.6, 0.0), (0.9, 0.1, 0.0))
# After START the draft says something impossible, so the first round ends there and leaves the target's row as it is.
Q = table((0.0, 0.0, 1.0), (1.0, 0.0, 0.0), (1.0, 0.0, 0.0))


def outcomes(drafter: Any, verifier: Any, p: Conditional, widths: tuple[int, ...], **more: Any) -> list[Leaf]:
    policy = Static(widths)
    size = Always(len(widths), policy.num_nodes)
    return leaves(
        TableModel(3, p),
        lambda: Recipe(drafter=drafter, policy=policy, verifier=verifier, controller=size),
        **more,
    )


def second(found: list[Leaf], token: int) -> float:
    return sum(leaf.prob for leaf in found if leaf.output[1] == token)


def test_a_choice_by_what_follows_is_lossy_to_the_digit() -> None:
    """.6 * .9 + (.4 * .9 + .6 * .1) * .3 instead of .3; and a twin: by rejection it is .3."""
    found = outcomes(TargetRoots(TableDrafter(Q)), LongestRun(), P, (2, 1), tokens=4)
    assert {leaf.output[0] for leaf in found} == {START} and sum(x.prob for x in found) == pytest.approx(1, abs=1e-12)
    assert second(found, 1) == pytest.approx(0.666, abs=1e-12)
    assert second(found, 0) == pytest.approx(0.334, abs=1e-12)
    exact = outcomes(TableDrafter(Q), Rejection(), P, (2, 1), tokens=4)
    assert second(exact, 1) == pytest.approx(0.3, abs=1e-12) and joint_error(exact, P, 3, 4) < 1e-12
    assert joint_error(found, P, 3, 4) > 0.1


def test_one_beginning_leaves_nothing_to_choose_and_is_exact() -> None:
    """The bias is in the choice alone: rows, residuals and the path that ends one token early are right."""
    for p, q in ((P, Q), (probs := random_probs(3, 5), near(probs, 3, 6, 0.5))):
        found = outcomes(TargetRoots(TableDrafter(q)), LongestRun(), p, (1, 1), tokens=4)
        assert joint_error(found, p, 3, 4) < 1e-12


@pytest.mark.slow
def test_a_residual_that_is_forgotten_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TokenProbs, "residual", lambda p, q: p)
    probs = random_probs(3, 5)
    found = outcomes(TargetRoots(TableDrafter(near(probs, 3, 6, 0.5))), LongestRun(), probs, (1, 1), tokens=4)
    assert joint_error(found, probs, 3, 4) > 1e-3


def test_at_temperature_0_the_second_choice_may_win() -> None:
    from draftwood.core.sampling.params import SamplingParams

    p = table((0.7, 0.3, 0.0), (0.4, 0.6, 0.0), (0.9, 0.1, 0.0))
    q = table((0.0, 0.0, 1.0), (1.0, 0.0, 0.0), (1.0, 0.0, 0.0))
    greedy = SamplingParams(temperature=0.0)
    (leaf,) = outcomes(TargetRoots(TableDrafter(q)), LongestRun(), p, (2, 1), tokens=4, params=greedy)
    assert leaf.output[:3] == (START, 1, 0), "after 0 the draft is wrong, after 1 it is right"
    (plain,) = outcomes(TableDrafter(q), Rejection(), p, (2, 1), tokens=4, params=greedy)
    assert plain.output[:3] == (START, 0, 1)


def test_it_says_what_it_is_and_what_it_is_defined_for() -> None:
    assert not LongestRun().lossless
    even = context_free((1 / 3,) * 3)
    recipe = Recipe(drafter=TableDrafter(even), policy=Static((2,)), verifier=LongestRun(), controller=Always(1, 2))
    assert not recipe.lossless
    recipe.check(CpuRunner(TableModel(3, even)))
    from draftwood.core.legal_draws import Draw

    with pytest.raises(CompositionError, match="LongestRun"):
        Recipe(
            drafter=TableDrafter(even), policy=Static((2,), Draw.IID), verifier=LongestRun(), controller=Always(1, 2)
        ).check(CpuRunner(TableModel(3, even)))


def test_rows_with_and_without_beginnings_share_a_round() -> None:
    """A text that has just come beside one that is under way: each is written as it is alone."""
    from draftwood.core.sampling.params import SamplingParams
    from draftwood.testing.runs import make_engine, serve

    probs = random_probs(3, 9)
    target = CpuRunner(TableModel(3, probs))

    def written(prompts: list[list[int]], arrive: dict[int, int], seeds: list[int]) -> list[list[int]]:
        policy = Static((2, 1))
        recipe = Recipe(
            drafter=TargetRoots(TableDrafter(near(probs, 3, 10, 0.5))),
            policy=policy,
            verifier=LongestRun(),
            controller=Always(2, policy.num_nodes),
        )
        params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=12) for seed in seeds]
        done = serve(make_engine(target, recipe, capacity=64), prompts, params, arrive=arrive)
        assert all(r.stats.disabled is None for r in done)
        return [r.output for r in done]

    together = written([[0], [1], [2, 1]], {1: 2, 2: 3}, [1, 2, 3])
    alone = [written([prompt], {}, [seed])[0] for prompt, seed in (([0], 1), ([1], 2), ([2, 1], 3))]
    assert together == alone and torch.tensor(together).shape == (3, 12)
