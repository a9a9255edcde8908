"""What counts: rows of tokens that the target wrote, and a share of those in prompts; nothing else."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.language import Language
from draftwood.drafters.learners.parallel import Parallel
from draftwood.drafters.learners.positions import Taught, imitate, positions, prompt_positions, taught
from draftwood.drafters.learners.unrolling.unrolled import Unrolled
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.train.loop.teacher import Teacher
from draftwood.train.objectives import inverse, soft_cross_entropy
from tiny_heads import random_net

ALL = torch.arange(CONFIG.vocab_size)


def shown_of(answer: list[int]) -> Any:
    """One text 10, 11, 12, ... whose answer tokens stand at these indices."""
    target, ids = tiny_runner(), torch.arange(10, 22)[None]
    on = torch.ones_like(ids, dtype=torch.bool)
    mask = torch.zeros_like(on)
    mask[0, answer] = True
    return Teacher(target).show(ids, mask, on, frozenset({-1}), 0)


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_position_counts_where_the_token_it_predicts_is_in_an_answer(ahead: int) -> None:
    shown = shown_of([4, 5, 6, 11])
    found = positions(shown, None, ahead).tolist()
    assert found == [t - ahead for t in (4, 5, 6, 11)]
    for wrong in (ahead - 1, ahead + 1):  # twins: one off would be noticed
        assert positions(shown, None, wrong).tolist() != found


def test_position_counts_only_where_the_draft_can_say_the_token() -> None:
    shown = shown_of([4, 5, 6, 11])
    places = inverse(torch.tensor([14, 21]), CONFIG.vocab_size)  # the tokens at 4 and 11
    assert positions(shown, places, 2).tolist() == [2, 9]


def test_share_of_the_positions_is_the_same_every_time() -> None:
    shown = shown_of(list(range(2, 12)))
    some = positions(shown, None, 2, 0.5)
    assert 0 < len(some) < 10 and torch.equal(some, positions(shown, None, 2, 0.5))


# --- prompts


def batch(share: float = 1.0, seed: int = 0, taps: frozenset[int] = frozenset({-1, 1, 2, 3}), rows: int = 2) -> Shown:
    """Texts that begin alike with three tokens; answers at 6..8, the second one's padding from 10 on."""
    ids = torch.randint(CONFIG.vocab_size, (2, 12), generator=torch.Generator().manual_seed(4))
    ids[1, :3], ids[1, 3] = ids[0, :3], (ids[0, 3] + 1) % CONFIG.vocab_size
    live = torch.ones_like(ids, dtype=torch.bool)
    live[1, 10:] = False
    answer = torch.zeros_like(live)
    answer[:, 6:9] = True
    return Teacher(tiny_runner()).show(ids[:rows], answer[:rows], live[:rows], taps, seed, share)


def test_prompts_teach_nothing_unless_it_is_asked_for() -> None:
    assert not len(prompt_positions(batch(0.0), 2)) and len(prompt_positions(batch(1.0), 2)), "and a twin"


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_prompt_positions_are_those_of_prompt_tokens_after_the_common_beginning(ahead: int) -> None:
    """Row 4 is the first that differs: it has read token 3. Neither answers nor padding, nor what follows the last token."""
    found = prompt_positions(batch(), ahead).tolist()
    first, second = [4, 5, 9, 10, 11], [4, 5, 9]
    assert found == [t - ahead for t in first] + [12 + t - ahead for t in second]
    alone = prompt_positions(batch(rows=1), ahead).tolist()
    assert alone == [t - ahead for t in (1, 2, 3, *first) if t >= ahead], "a twin: one text has nothing in common"


def test_header_that_comes_again_is_left_out_again() -> None:
    """As in rows that hold several texts, one behind the other."""
    ids = torch.tensor([[7, 8, 1, 2, 3, 7, 8, 4, 5, 9], [7, 8, 2, 6, 6, 7, 9, 7, 8, 5]])
    on = torch.ones_like(ids, dtype=torch.bool)
    none: Any = None
    shown = Shown(ids, ids, on & False, on, {}, none, none, 0, 1.0)
    tokens = [(t + 1) % 10 + 10 * (t // 10) for t in prompt_positions(shown, 1).tolist()]
    assert tokens == [3, 4, 8, 9, 13, 14, 15, 16], "7 8 and what follows are out, 7 9 is not"
    alike = replace(shown, text=ids[:1].repeat(2, 1))
    assert not len(prompt_positions(alike, 1)), "texts that are the same have nothing to say"


def test_no_position_counts_twice() -> None:
    for ahead in (1, 2, 3, 4):
        at = taught(batch(), None, ahead)
        assert len(at.every.unique()) == len(at.answers) + len(at.prompts)


def test_share_of_the_prompts_is_that_of_its_step() -> None:
    some = prompt_positions(batch(0.5), 1)
    assert 0 < len(some) < 8 and torch.equal(some, prompt_positions(batch(0.5), 1))
    seeds = {tuple(prompt_positions(batch(0.5, seed), 1).tolist()) for seed in range(8)}
    assert len(seeds) > 4
    wide = torch.full((4, 4000), 3)
    on = torch.ones_like(wide, dtype=torch.bool)
    none: Any = None
    many = Shown(wide, wide, on & False, on, {}, none, none, 7, 0.25)
    assert abs(len(prompt_positions(replace(many, text=torch.arange(16000).view(4, 4000)), 1)) / 15996 - 0.25) < 0.02


def test_index_that_counts_counts_at_every_depth_it_can() -> None:
    """A roll-out is learned whole, and a smaller share is a part of a larger one."""
    shown = batch(0.5)
    chosen, every = set(prompt_positions(shown, 1).tolist()), batch(1.0)
    for ahead in (1, 2, 3):
        here = set(prompt_positions(shown, ahead).tolist())
        both = set(prompt_positions(every, 1).tolist()) & set(prompt_positions(every, ahead).tolist())
        assert here & both == chosen & both
        assert set(prompt_positions(shown, ahead, 0.5).tolist()) <= here


def test_loss_is_the_mean_over_answers_and_prompts_and_hits_are_told_apart() -> None:
    noise = torch.Generator().manual_seed(0)
    y, f = (torch.randn(9, 8, generator=noise, dtype=torch.float64) for _ in range(2))
    weight, rows = (torch.randn(20, 8, generator=noise, dtype=torch.float64) for _ in range(2))
    f[:4] = y[:4]
    at = Taught(torch.tensor([0, 1, 2]), torch.tensor([5, 7]))
    loss, hits = imitate(y, rows, f, rows, at)
    together, _ = soft_cross_entropy(y[at.every], rows, f[at.every], rows)
    torch.testing.assert_close(loss, together)
    assert float(hits["hit"]) == 1 and float(hits["prompt_hit"]) < 1
    alone, hits = imitate(y, weight, f, rows, Taught(at.answers, at.prompts[:0]))
    assert not torch.allclose(alone, together) and list(hits) == ["hit"]


def learner(kind: str) -> Any:
    if kind == "language":
        return Language(random_net(kind), ALL, align=True)
    if kind.startswith("eagle"):
        return Unrolled(random_net(kind, target_rows=kind == "eagle3"), ALL, steps=3, regress=0.3)
    return Parallel(random_net(kind, stages=3), ALL)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa", "hydra", "mlp", "language"])
def test_prompts_teach_what_they_would_teach_as_answers(kind: str) -> None:
    """Where every token can be said, a prompt is treated as an answer."""
    own = learner(kind)
    shown = batch(taps=own.needs.taps, rows=1)
    ((_, loss, _),) = own.losses(shown, 0.0)
    as_answers = replace(shown, answer=shown.live, prompt_share=0.0)
    ((_, right, _),) = own.losses(as_answers, 0.0)
    torch.testing.assert_close(loss, right, rtol=1e-9, atol=1e-9)
    ((_, less, figures),) = own.losses(replace(shown, prompt_share=0.0), 0.0)
    assert not torch.allclose(loss, less, rtol=1e-4) and not any("prompt" in name for name in figures), "and a twin"
