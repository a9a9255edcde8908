"""Typical acceptance: thresholds by hand, what it emits to the digit, and plain decoding where nothing is chance."""

from contextlib import nullcontext
from math import exp, log
from typing import Any

import pytest
import torch

from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.nets.make_drafter import exit_drafter
from draftwood.errors import CompositionError, OptionError
from draftwood.recipes import autoregressive
from draftwood.testing.contracts import Always
from draftwood.testing.exact import Leaf, joint_error, leaves
from draftwood.testing.host_reads import as_if_on_a_device
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, context_free
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.typical import Typical
from own_layers import PROMPTS, TARGETS, exit_head, served

P, Q = (0.5, 0.3, 0.2), (0.1, 0.2, 0.7)


def outcomes(rule: Any, policy: Any, q: Any = Q, depth: int = 2, nodes: int = 2, tokens: int = 2) -> list[Leaf]:
    return leaves(
        TableModel(3, context_free(P)),
        lambda: Recipe(
            drafter=TableDrafter(context_free(q)), policy=policy, verifier=rule, controller=Always(depth, nodes)
        ),
        tokens=tokens,
    )


def emitted(found: list[Leaf], place: int) -> list[float]:
    return [sum(leaf.prob for leaf in found if leaf.output[place] == token) for token in range(3)]


def test_the_threshold_follows_the_entropy() -> None:
    p = torch.tensor([P, (1.0, 0.0, 0.0), (0.98, 0.01, 0.01)], dtype=torch.float64)
    entropy = -sum(x * log(x) for x in P)
    flat, sure, nearly = Typical(most=0.25, share=0.6).thresholds(p).tolist()
    assert flat == pytest.approx(min(0.25, 0.6 * exp(-entropy))) and flat < 0.25
    assert sure == 0.25 and nearly == 0.25
    assert Typical(most=1.0, share=1.0).thresholds(p).tolist() == pytest.approx([exp(-entropy), 1.0, 0.98], abs=0.12)
    assert Typical(most=1.0, share=1.0).thresholds(torch.full((4,), 0.25)).item() == 0.25, (
        "the best token always reaches it"
    )


def test_what_does_not_reach_the_threshold_is_never_emitted() -> None:
    """With a threshold of .25 the output is (.625, .375, 0), drafted or not; a twin: by match it is (.5, .3, .2)."""
    rule = Typical(most=0.25, share=1.0)
    for policy in (Chain(Draw.GIVEN), BestFirst(2, children=2)):
        found = outcomes(rule, policy, q=(0.0, 0.0, 1.0))  # the draft is never typical
        assert emitted(found, 0) == pytest.approx([0.625, 0.375, 0.0], abs=1e-12)
    assert joint_error(outcomes(Match(), Chain(Draw.GIVEN)), context_free(P), 3, 2) < 1e-12
    assert joint_error(found, context_free(P), 3, 2) > 0.1


def test_a_typical_draft_is_kept_for_certain_and_the_more_probable_of_two_wins() -> None:
    certain = outcomes(Typical(most=0.25), BestFirst(1), q=(0.1, 0.8, 0.1), depth=1, nodes=1, tokens=3)
    assert emitted(certain, 0) == pytest.approx([0.0, 1.0, 0.0], abs=1e-12)
    both = outcomes(Typical(most=0.25), BestFirst(2, children=2), q=(0.4, 0.5, 0.1), depth=1, nodes=2, tokens=3)
    assert emitted(both, 0) == pytest.approx([1.0, 0.0, 0.0], abs=1e-12)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", list(TARGETS))
def test_a_greedy_text_is_that_of_plain_decoding(name: str) -> None:
    target = TARGETS[name]()
    with as_if_on_a_device() if name == "device" else nullcontext():
        done, seen = served(target, exit_drafter(exit_head(target), target), 0.0, BestFirst(2, children=2), Typical())
    assert [r.output for r in done] == [r.output for r in served(target, None, 0.0)[0]]
    print(name, dict(seen.rounds))
    assert all(seen.rounds[each] for each in ("all", "some", "none"))


def test_greedy_and_sampled_requests_share_a_batch() -> None:
    target = tiny_runner()
    params = [SamplingParams(max_tokens=8, temperature=float(i % 2), seed=i) for i in range(8)]
    recipe = Recipe(
        drafter=exit_drafter(exit_head(target), target),
        policy=BestFirst(2, children=2),
        verifier=Typical(),
        controller=Always(2, 4),
    )
    mixed = serve(make_engine(target, recipe, slots=8), PROMPTS[:8], params)
    plain = serve(make_engine(target, autoregressive.build(target), slots=8), PROMPTS[:8], params)
    assert [r.output for r in mixed[::2]] == [r.output for r in plain[::2]]
    alone = serve(make_engine(target, recipe, slots=1), PROMPTS[3:4], params[3:4])
    assert alone[0].output == mixed[3].output, "a sampled text does not depend on its batch"


def test_it_is_labelled_lossy_and_refuses_what_it_is_not_defined_for() -> None:
    assert not Typical().lossless
    parts: dict[str, Any] = {"drafter": TableDrafter(context_free(Q)), "controller": Always(1, 1)}
    with pytest.raises(CompositionError, match="Typical"):
        Recipe(policy=Chain(), verifier=Typical(), **parts).check(tiny_runner())
    each: tuple[dict[str, Any], ...] = ({"most": 0.0}, {"share": 1.5})
    for wrong in each:
        with pytest.raises(OptionError, match=next(iter(wrong))):
            Typical(**wrong)
