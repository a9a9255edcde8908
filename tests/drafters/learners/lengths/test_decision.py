"""A decision net learns what the rule will do with the draft it sits beside."""

from functools import partial
from typing import Any

import pytest
import torch

from draftwood import recipes
from draftwood.core.forward import FINAL
from draftwood.drafters.learners.lengths.decision import Decision, states
from draftwood.drafters.learners.plans import decision_plan
from draftwood.drafters.nets.files.build import filled
from draftwood.errors import CompositionError, OptionError
from draftwood.recipes import dynamic_mcsd
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.train.loop.teacher import Teacher, read_features

INNER = "speculative_sampling:draft=first:2"
KEEP = torch.arange(CONFIG.vocab_size)


def shown_of(target: Any, answer: tuple[int, ...], seed: int = 0) -> Any:
    ids = torch.stack([torch.arange(10, 22), torch.arange(30, 42)])
    live = torch.ones_like(ids, dtype=torch.bool)
    live[1, 9:] = False
    mask = torch.zeros_like(live)
    mask[:, list(answer)] = True
    return Teacher(target).show(ids, mask & live, live, frozenset({FINAL}), seed)


def test_states_are_those_of_the_drafts_own_pass() -> None:
    target = tiny_runner()
    draft = target.first_layers(2)
    shown = shown_of(target, (4,))
    right = read_features(draft, shown.ids, shown.live, frozenset({2}))[2]
    mine = states(draft, shown.ids, shown.live)
    torch.testing.assert_close(mine[shown.live], right[shown.live], rtol=1e-9, atol=1e-9)
    assert not mine[~shown.live].any(), "nothing is known of padding"


def test_labels_are_the_chance_that_the_rule_keeps_a_draw() -> None:
    """Of single draws, or their mean: the acceptance of one drawn child, the sum of min(p, q)."""
    target = tiny_runner()
    draft = target.first_layers(3)
    net: Any = filled(random_head("decision", target)).double()
    shown = shown_of(target, (5,))
    h, f = states(draft, shown.ids, shown.live)[0, 4], shown.features[FINAL][0, 4]
    p, q = (f @ shown.rows(None).T).softmax(-1), draft.head(h).softmax(-1)
    right = float(torch.minimum(p, q).sum())
    found = Decision(net, draft, drawn=True).labels(shown, h.expand(4000, -1), f.expand(4000, -1))
    assert float(found.min()) >= 0 and float(found.max()) <= 1 and float(found.std()) > 0.1
    assert float(found.mean()) == pytest.approx(right, abs=0.02)
    assert Decision(net, draft).labels(shown, h[None], f[None]).tolist() == pytest.approx([right], abs=1e-5)
    own = states(target, shown.ids, shown.live)[0, 4].expand(50, -1)
    for drawn in (False, True):
        same = Decision(net, target, drawn=drawn).labels(shown, own, f.expand(50, -1))
        assert bool((same > 1 - 1e-5).all()), "a draft that is the target is always kept"


def test_rows_of_a_trimmed_head_are_known_by_their_tokens() -> None:
    target = tiny_runner()
    net: Any = filled(random_head("decision", target)).double()
    shown = shown_of(target, (5,))
    h, f = states(target, shown.ids, shown.live)[0, 4].expand(300, -1), shown.features[FINAL][0, 4].expand(300, -1)

    class Turned:
        """The target with the rows of its head in another order."""

        head = staticmethod(lambda hidden: target.head(hidden).flip(-1))

    assert bool((Decision(net, Turned(), KEEP.flip(0)).labels(shown, h, f) > 1 - 1e-5).all())  # type: ignore[arg-type]
    assert float(Decision(net, Turned()).labels(shown, h, f).mean()) < 0.9, "a twin"  # type: ignore[arg-type]


def test_only_what_the_target_wrote_teaches_and_a_share_of_it() -> None:
    target = tiny_runner()
    plan = decision_plan(target, recipes.drafter(INNER, target), wide=8, rate=1e-3, seed=0, share=1.0)
    learner: Any = plan.learns[0].learner
    asked: list[int] = []
    labels = type(learner).labels

    def counting(self: Any, shown: Any, h: Any, f: Any) -> Any:
        asked.append(len(h))
        return labels(self, shown, h, f)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(learner), "labels", counting)
        list(learner.losses(shown_of(target, (4, 5, 6, 10)), 0.0))
        list(Decision(learner.net, learner.draft, share=0.5).losses(shown_of(target, tuple(range(1, 12))), 0.0))
    assert asked[0] == 7, "the second text has no token 10"
    assert 0 < asked[1] < 19


def test_draws_are_those_of_their_step() -> None:
    target = tiny_runner()
    made = partial(decision_plan, target, recipes.drafter(INNER, target), wide=8, rate=1e-3, share=1.0, drawn=True)
    answer = tuple(range(3, 9))

    def loss(step: int, seed: int = 0) -> float:
        ((_, found, _),) = made(seed=seed).learns[0].learner.losses(shown_of(target, answer, step), 0.0)
        return float(found.detach())

    assert loss(3) == loss(3)
    assert loss(3) != loss(4) and loss(3) != loss(3, seed=1), "twins: another step, other weights"


def test_the_net_learns_where_the_draft_is_kept() -> None:
    """On texts it sees again and again, with other draws each time: better than any constant."""
    target = tiny_runner(dtype=torch.float32)
    plan = decision_plan(target, recipes.drafter(INNER, target), wide=32, rate=1e-2, seed=0, share=1.0, drawn=True)
    learner: Any = plan.learns[0].learner
    adam = torch.optim.Adam(learner.net.parameters(), lr=1e-2)
    told: list[tuple[float, float]] = []
    for step in range(60):
        ((_, loss, figures),) = learner.losses(shown_of(target, tuple(range(1, 12)), step), 0.0)
        adam.zero_grad()
        loss.backward()
        adam.step()
        told.append((float(loss.detach()), float(figures["constant"])))
    first, last = (torch.tensor(part).mean(0) for part in (told[:3], told[-30:]))
    assert last[0] < 0.95 * last[1] and last[0] < first[0], (first, last)


def test_widths_follow_the_draft_in_the_published_proportions() -> None:
    target = tiny_runner(dtype=torch.float32)
    net: Any = dynamic_mcsd.training(target, KEEP, inner=INNER).net
    assert [tuple(net.get_submodule(x).weight.shape) for x in ("first", "second", "last")] == [
        (32, 32),
        (16, 32),
        (1, 16),
    ]
    assert dynamic_mcsd.training(target, KEEP, inner=INNER, wide=10).config.layer.intermediate_size == 10
    for wrong in ({"wide": 0}, {"share": 0.0}, {"share": 1.5}, {"rate": 0.0}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))} cannot be"):
            dynamic_mcsd.training(target, KEEP, inner=INNER, **wrong)  # type: ignore[arg-type]


def test_a_drafter_without_hidden_states_cannot_be_learned_from() -> None:
    with pytest.raises(CompositionError, match="NGram shows none"):
        dynamic_mcsd.training(tiny_runner(), KEEP, inner="prompt_lookup")
