"""An acceptance net learns what the rule does with the tokens that its draft model draws."""

from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch

from draftwood.core.forward import FINAL
from draftwood.drafters.learners.lengths.acceptance import Acceptance, weighted_entropy, weighted_mean
from draftwood.drafters.learners.lengths.decision import states
from draftwood.errors import CompositionError, OptionError
from draftwood.recipes import specdec_pp
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.train.loop.teacher import Teacher

INNER = "speculative_sampling:draft=first:3"
KEEP = torch.arange(CONFIG.vocab_size)


def learner_of(target: Any, inner: str = INNER, **more: Any) -> Acceptance:
    found: Any = specdec_pp.training(target, KEEP, inner=inner, share=1.0, **more).learns[0].learner
    return found


def shown_of(target: Any, seed: int = 0) -> Any:
    ids = torch.stack([torch.arange(10, 22), torch.arange(30, 42)])
    live, answer = torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
    live[1, 9:] = False
    answer[0, 3:12] = answer[1, 2:9] = True
    return Teacher(target).show(ids, answer & live, live, frozenset({FINAL}), seed)


def test_the_loss_is_that_of_a_hand_calculation() -> None:
    chance, label = (0.9, 0.3, 0.5), (1.0, 0.25, 0.0)
    right = sum(-a * log(c) - 6 * (1 - a) * log(1 - c) for c, a in zip(chance, label, strict=True))
    right /= sum(a + 6 * (1 - a) for a in label)
    logit = torch.tensor(chance, dtype=torch.float64).logit()
    assert float(weighted_entropy(logit, torch.tensor(label), 6.0)) == pytest.approx(right, abs=1e-6)
    assert float(weighted_entropy(logit[:0], torch.tensor(label)[:0], 6.0)) == 0


def test_the_best_constant_has_odds_that_the_weight_divides() -> None:
    label = torch.tensor([1.0, 0.8, 0.6, 0.0, 1.0]).double()
    best = weighted_mean(label, 6.0)
    kept = float(label.mean())
    assert float(best / (1 - best)) == pytest.approx(kept / (1 - kept) / 6)

    def loss(chance: float) -> float:
        return float(weighted_entropy(torch.full_like(label, chance).logit(), label, 6.0))

    assert all(loss(float(best)) < loss(float(best) + off) for off in (-0.02, 0.02))


def test_labels_are_the_chance_that_the_rule_keeps_the_draw() -> None:
    target = tiny_runner()
    learner, shown = learner_of(target), shown_of(target)
    places, drawn, q = learner.draws(shown)
    assert places.tolist() == [*range(3, 12), *range(12 + 2, 12 + 9)]
    h = states(learner.draft, shown.ids, shown.live).flatten(0, 1)[places - 1]
    f = shown.features[FINAL].flatten(0, 1)[places - 1]
    rows = learner.draft.head(h).softmax(-1), (f @ shown.rows(None).T).softmax(-1)
    own, theirs = (x.gather(1, drawn[:, None])[:, 0] for x in rows)
    torch.testing.assert_close(q, own.float())
    torch.testing.assert_close(learner.labels(shown, places, drawn, q), (theirs / own).clamp_max(1).float())
    every = [learner.draws(replace(shown, seed=seed)) for seed in range(100)]
    mean = torch.stack([learner.labels(shown, *each) for each in every]).mean(0)
    torch.testing.assert_close(mean, torch.minimum(*rows).sum(-1).float(), atol=0.15, rtol=0)
    same = learner_of(target, "speculative_sampling:draft=first:4")
    assert bool((same.labels(shown, *same.draws(shown)) > 1 - 1e-5).all()), "a draft that is the target is kept"


def test_the_draft_reads_its_own_draws_in_most_places_and_answers_in_the_others() -> None:
    target = tiny_runner()
    shown = shown_of(target)
    for mixed in (0.0, 0.4, 1.0):
        learner = learner_of(target, mixed=mixed)
        places, drawn, _ = learner.draws(shown)
        z, taken = learner.mixture(shown, places, drawn)
        text = shown.ids.flatten()[places]
        there = z.flatten()[places]
        assert bool(((there == drawn) | (there == text)).all())
        assert torch.equal(taken, there == drawn)
        if mixed == 0.0:
            assert torch.equal(there, drawn)
        if mixed == 1.0:
            assert torch.equal(z, shown.ids)
        if mixed == 0.4:
            assert 0 < int((there == text).sum()) < len(places)
        outside = torch.ones(z.numel(), dtype=torch.bool)
        outside[places] = False
        assert torch.equal(z.flatten()[outside], shown.ids.flatten()[outside])


def test_the_net_reads_the_state_after_the_draw() -> None:
    """Where a token of the answer stands, nothing is learned."""
    target = tiny_runner()
    learner, shown, read = learner_of(target, mixed=0.4), shown_of(target), list[Any]()

    class Net(torch.nn.Module):
        last = torch.nn.Linear(1, 2, dtype=torch.float64)

        def logit(self, hidden: Any) -> Any:
            read.append(hidden)
            return hidden[..., 0] * 0

    list(replace(learner, net=Net()).losses(shown, 0.0))
    places, drawn, _ = learner.draws(shown)
    z, taken = learner.mixture(shown, places, drawn)
    assert torch.equal(read[0], states(learner.draft, z, shown.live).flatten(0, 1)[places[taken]])
    assert 0 < len(read[0]) < len(places)


def test_draws_are_those_of_their_step_and_a_share_of_them_teaches() -> None:
    target = tiny_runner()
    learner = learner_of(target)

    def loss(seed: int, share: float = 1.0) -> float:
        ((_, found, _),) = replace(learner, share=share).losses(shown_of(target, seed), 0.0)
        return float(found.detach())

    assert loss(3) == loss(3) and loss(3) != loss(4) and loss(3) != loss(3, 0.5)


def test_the_net_learns_where_draws_are_kept() -> None:
    target = tiny_runner(dtype=torch.float32)
    learner = learner_of(target, "speculative_sampling:draft=first:2")
    adam = torch.optim.Adam(learner.net.parameters(), lr=3e-3)
    told: list[tuple[float, float]] = []
    shown = shown_of(target)
    for _ in range(60):
        ((_, loss, figures),) = learner.losses(shown, 0.0)
        adam.zero_grad()
        loss.backward()
        adam.step()
        told.append((float(loss.detach()), float(figures["constant"])))
    assert told[-1][0] < 0.9 * told[-1][1] and told[-1][0] < told[0][0], (told[0], told[-1])


def test_sizes_are_checked_and_a_drafter_without_hidden_states_is_refused() -> None:
    target = tiny_runner(dtype=torch.float32)
    plan = specdec_pp.training(target, KEEP, inner=INNER)
    assert (plan.config.depth, plan.config.tied, plan.config.layer.hidden_size) == (3, False, 32)
    shared: Any = specdec_pp.training(target, KEEP, inner=INNER, tied=True).net
    assert len(shared.blocks) == 1
    for wrong in ({"blocks": 0}, {"mixed": 1.1}, {"weight": 0.0}, {"share": 0.0}, {"rate": 0.0}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))} cannot be"):
            specdec_pp.training(target, KEEP, inner=INNER, **wrong)  # type: ignore[arg-type]
    with pytest.raises(CompositionError, match="NGram shows none"):
        specdec_pp.training(target, KEEP, inner="prompt_lookup")
