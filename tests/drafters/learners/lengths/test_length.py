"""A length net learns how far the drafter's chains are right; errors count as they are said to."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.core.forward import FINAL
from draftwood.drafters.learners.lengths import length
from draftwood.drafters.learners.lengths.length import Length, uneven
from draftwood.errors import CompositionError, OptionError
from draftwood.recipes import ada_eagle
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.train.loop.teacher import Teacher

INNER = "speculative_sampling:draft=first:3"
KEEP = torch.arange(CONFIG.vocab_size)


def learner_of(target: Any, **more: Any) -> Length:
    found: Any = ada_eagle.training(target, KEEP, inner=INNER, most=4, **more).learns[0].learner
    return found


def shown_of(target: Any, learner: Length, seed: int = 0) -> Any:
    """Two texts, one of which ends early; answers with a prompt between them."""
    ids = torch.stack([torch.arange(10, 22), torch.arange(30, 42)])
    live, answer = torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
    live[1, 9:] = False
    answer[0, 3:6] = answer[0, 8:12] = True
    answer[1, 2:9] = True
    return Teacher(target).show(ids, answer & live, live, learner.needs.taps, seed)


def test_the_loss_is_that_of_a_hand_calculation() -> None:
    found, k = torch.tensor([2.0, 0.5, 4.0, -1.0]), torch.tensor([1.0, 3.0, 4.0, 0.0])
    assert float(uneven(found, k, 3.0)) == pytest.approx((1 + 3 * 2.5 + 0 + 3 * 1) / 4)
    assert float(uneven(found, k, 1.0)) == pytest.approx((1 + 2.5 + 0 + 1) / 4)
    assert float(uneven(found[:0], k[:0], 3.0)) == 0


def test_the_best_constant_is_a_quantile_of_the_labels() -> None:
    k = torch.tensor([0.0, 0, 1, 1, 2, 2, 3, 5])
    for short in (1.0, 3.0, 7.0):
        losses = [float(uneven(torch.full_like(k, c), k, short)) for c in range(7)]
        best = float(k.quantile(short / (1 + short), interpolation="nearest"))
        assert losses[int(best)] == pytest.approx(min(losses))


def test_roots_stand_inside_answers_and_no_draft_goes_beyond_them(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_runner()
    learner = learner_of(target)
    shown = shown_of(target, learner)
    assert learner.roots(shown) == [[3, 4, 8, 9, 10], [2, 3, 4, 5, 6, 7]]
    monkeypatch.setattr(length, "agreed", lambda drafter, text, features, roots, most: [most] * len(roots))
    assert [learner.labels(shown, b, roots) for b, roots in enumerate(learner.roots(shown))] == [
        [2, 1, 3, 2, 1],
        [4, 4, 4, 3, 2, 1],
    ]


def test_the_net_reads_the_token_before_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_runner()
    learner = learner_of(target)
    shown = shown_of(target, learner)
    monkeypatch.setattr(length, "agreed", lambda drafter, text, features, roots, most: [1 for _ in roots])
    read: list[Any] = []

    class Net(torch.nn.Module):
        last = torch.nn.Linear(1, 1, dtype=torch.float64)

        def forward(self, embedding: Any, feature: Any) -> Any:
            read.append((embedding, feature))
            return embedding[..., 0] * 0

    list(replace(learner, net=Net()).losses(shown, 0.0))
    at = [(0, root - 1) for root in (3, 4, 8, 9, 10)] + [(1, root - 1) for root in range(2, 8)]
    assert torch.equal(read[0][0], torch.stack([target.embed(shown.ids[b, t]) for b, t in at]))
    assert torch.equal(read[0][1], torch.stack([shown.features[FINAL][b, t] for b, t in at]))


def test_a_share_of_the_positions_is_that_of_its_step() -> None:
    target = tiny_runner()
    learner = learner_of(target, share=0.5)
    found = [learner.roots(shown_of(target, learner, seed)) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2] and 0 < sum(map(len, found[0])) < 11


def test_the_net_learns_lengths_better_than_any_constant() -> None:
    target = tiny_runner(dtype=torch.float32)
    learner = learner_of(target, wide=32)
    adam = torch.optim.Adam(learner.net.parameters(), lr=1e-2)
    shown, told = shown_of(target, learner), list[tuple[float, float]]()
    for _ in range(60):
        ((_, loss, figures),) = learner.losses(shown, 0.0)
        adam.zero_grad()
        loss.backward()
        adam.step()
        told.append((float(loss.detach()), float(figures["constant"])))
    assert told[-1][0] < 0.8 * told[-1][1] and told[-1][0] < told[0][0]


def test_sizes_are_checked_and_a_drafter_without_chains_is_refused() -> None:
    target = tiny_runner(dtype=torch.float32)
    plan = ada_eagle.training(target, KEEP, inner=INNER)
    assert (plan.config.stages, plan.config.depth, plan.config.layer.hidden_size) == (10, 3, 32)
    assert plan.notes["options"] == {"inner": INNER, "size": "paper"} and plan.notes["ids"] is None
    for wrong in ({"most": 0}, {"most": 65}, {"wide": 0}, {"share": 0.0}, {"short": 0.0}, {"rate": 0.0}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))} cannot be"):
            ada_eagle.training(target, KEEP, inner=INNER, **wrong)  # type: ignore[arg-type]
    with pytest.raises(CompositionError, match="not from NGram"):
        ada_eagle.training(target, KEEP, inner="prompt_lookup")
