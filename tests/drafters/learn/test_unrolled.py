"""What is trained is what will run: an unrolled step equals a real roll-out over the same tokens."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_heads import KEEP, random_net

from draftwood.cache.dense import DenseCache
from draftwood.core.passes import Tokens
from draftwood.drafters.learn.unrolled import Unrolled
from draftwood.drafters.nets.runner import FloatRunner
from draftwood.testing.tiny import CONFIG, tiny_decoder
from draftwood.train.capture import Teacher


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_step_j_is_a_roll_out_of_j_steps(kind: str) -> None:
    target, module = tiny_decoder(), random_net(kind)
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]])
    on = torch.ones_like(ids, dtype=torch.bool)
    learner = Unrolled(module, KEEP, steps=4)
    shown = Teacher(target).show(ids, on, on, learner.needs.taps, 0)
    steps = list(learner.outputs(shown))
    runner = FloatRunner(module, target, KEEP)
    for t in (2, 5, 7):
        cache = DenseCache(runner.row_specs, slots=1, capacity=64)
        cache.admit(0, [])
        fused = runner.fuse([shown.features[tap][0, : t + 1] for tap in runner.taps])
        out = forward(runner, cache, ids[0, 1 : t + 2], fused, 0)[-1:]
        torch.testing.assert_close(out, steps[0][0, t : t + 1], rtol=1e-9, atol=1e-9)
        for j in range(1, 4):
            out = forward(runner, cache, ids[0, t + 1 + j : t + 2 + j], out, t + j)
            torch.testing.assert_close(out, steps[j][0, t : t + 1], rtol=1e-9, atol=1e-9)


def forward(runner: Any, cache: Any, ids: torch.Tensor, hidden: torch.Tensor, first: int) -> torch.Tensor:
    rows = torch.arange(len(ids))
    x = Tokens(ids, torch.zeros_like(ids), rows + first, rows, rows - 1, want=rows[-1:], hidden=hidden)
    out, _ = runner.forward(x, cache)
    cache.commit([0], [rows.tolist()])
    return out


def test_the_first_step_alone_is_a_plain_forward() -> None:
    """A twin: later steps differ from it, or nothing was unrolled."""
    target, module = tiny_decoder(), random_net("eagle3")
    ids = torch.randint(CONFIG.vocab_size, (2, 10), generator=torch.Generator().manual_seed(0))
    on = torch.ones_like(ids, dtype=torch.bool)
    learner = Unrolled(module, KEEP, steps=2)
    first, second = learner.outputs(Teacher(target).show(ids, on, on, learner.needs.taps, 0))
    alone = next(
        iter(Unrolled(module, KEEP, steps=1).outputs(Teacher(target).show(ids, on, on, learner.needs.taps, 0)))
    )
    torch.testing.assert_close(first, alone)
    assert not torch.allclose(first, second)
