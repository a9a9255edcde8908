"""Chains that kernels judge come out as the block rule says, and sequences that they cannot judge are judged beside them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import native_levels
from draftwood.core.forward import ForwardOutput
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.sampling.keys import digits, fold
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.random import invert
from draftwood.models.backends.kernel_sampling import Nucleus
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.contracts import Always
from draftwood.testing.exact import joint_error, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import Conditional, TableModel, random_probs
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.block import Block, share, weights
from native_levels import EVERY_LEVEL

VOCAB = 3


class Backend(TableModel):
    """Tables whose distributions the kernels make."""

    def __init__(self, probs: Conditional, kernels: Any) -> None:
        super().__init__(VOCAB, probs)
        self.kernels = kernels

    def forward(self, x: Any, cache: Any, **more: Any) -> ForwardOutput:
        output = super().forward(x, cache, **more)
        return replace(output, logits=output.logits.float(), kernels=self.kernels)


class Single(TableDrafter):
    def propose(self, state: Any, rnd: Any, base: Any, limit: Any, policy: Any) -> Proposal:
        made = super().propose(state, rnd, base, limit, policy)
        return made if made.q is None else replace(made, q=DraftProbs(made.q.prob.float(), made.q.ids))


class Counted(Nucleus):
    asked = 0

    def block_chances(self, *given: Any) -> Any:
        Counted.asked += 1
        return super().block_chances(*given)


class TokenByToken(Nucleus):
    """Keeps a chain as if each token were judged alone, and leaves what the block rule leaves."""

    def block_chances(self, *given: Any) -> Any:
        found = super().block_chances(*given)
        assert found is not None
        w, chance = found
        return w, [min(1.0, x + 0.2) for x in chance]


def made(q: Conditional) -> Any:
    return lambda: Recipe(drafter=Single(q), policy=Chain(), verifier=Block(), controller=Always(2, 2))


def error(kernels: Any, temperature: float = 1.0) -> float:
    p, q = random_probs(VOCAB, 1), random_probs(VOCAB, 51)
    found = leaves(Backend(p, kernels), made(q), params=SamplingParams(temperature=temperature))

    def heated(text: Any) -> tuple[float, ...]:
        raised = [x ** (1 / temperature) for x in p(text)]
        return tuple(x / sum(raised) for x in raised)

    return joint_error(found, heated, VOCAB, 3)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_what_kernels_judge_comes_out_exactly(temperature: float) -> None:
    before = Counted.asked
    assert error(Counted(native_levels.opened(native_levels.BEST)), temperature) < 1e-6
    assert Counted.asked > before


def test_control_another_chance_to_stop_fails() -> None:
    assert error(TokenByToken(native_levels.opened(native_levels.BEST))) > 0.01


def drawn(count: int, vocab_size: int, kept: int | None) -> tuple[Tensor, DraftProbs, list[int]]:
    noise = torch.Generator().manual_seed(count)
    logits = 3 * torch.randn(count, vocab_size, generator=noise)
    ids = None if kept is None else torch.randperm(vocab_size, generator=noise)[:kept].sort().values
    near = logits if ids is None else logits[:, ids]
    q = torch.softmax(near + torch.randn(near.shape, generator=noise), -1)
    column = torch.multinomial(q, 1, generator=noise)[:, 0]
    return logits, DraftProbs(q, ids), (column if ids is None else ids[column]).tolist()


@pytest.mark.parametrize("kept", [None, 300])
@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_weights_and_chances_are_those_of_stock_operations(level: str, kept: int | None) -> None:
    logits, q, tokens = drawn(6, 1000, kept)
    kernels, order = Nucleus(native_levels.opened(level)), [5, 4, 3, 2, 1, 0]
    found = kernels.block_chances(logits, order, 0.8, q, order, [tokens[i] for i in order])
    assert found is not None
    p = torch.softmax(logits.double()[order] / 0.8, -1)
    dense = q.dense(torch.tensor(order), 1000).double()
    token = torch.tensor([[tokens[i]] for i in order])
    top, bottom = (x.gather(1, token).T for x in (p, dense))
    w = weights(torch.ones(1, dtype=torch.float64), top, bottom)[0]
    rest = (w[:-1, None] * p - dense).clamp_min(0).sum(1)
    assert found[0] == pytest.approx(w.tolist(), rel=1e-5)
    assert found[1] == pytest.approx(share(rest, w[:-1]).tolist(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kept", [None, 300])
def test_what_is_left_is_picked_as_by_stock_operations(kept: int | None) -> None:
    logits, q, _ = drawn(3, 1000, kept)
    kernels = Nucleus(native_levels.opened(native_levels.BEST))
    uniforms = digits(fold(torch.arange(400), 7))
    dense = q.dense(torch.tensor([1]), 1000)
    for w in (1.0, 0.4, 1e-9):
        p = torch.softmax(logits[2:] / 1.3, -1)
        rest = (w * p - dense).clamp_min(0)
        rest = rest if bool((rest > 0).any()) else p
        want = invert(rest.expand(400, -1).contiguous(), uniforms).tolist()
        got = [kernels.pick_left(logits, 2, 1.3, w, q, 1, u) for u in uniforms]
        assert sum(a != b for a, b in zip(got, want, strict=True)) <= 1, "but for a tie in the last bits"
        assert len(set(got)) > 20


def test_a_sequence_is_judged_alone_as_beside_others_that_kernels_cannot_judge() -> None:
    p, q = random_probs(VOCAB, 3), random_probs(VOCAB, 4)
    kernels = Counted(native_levels.opened(native_levels.BEST))
    params = [
        SamplingParams(temperature=1.0, seed=1, max_tokens=30),
        SamplingParams(temperature=1.0, seed=2, max_tokens=30, top_p=0.8),
        SamplingParams(seed=3, max_tokens=30),
        SamplingParams(temperature=0.7, seed=4, max_tokens=30),
    ]
    prompts = [[1, 2], [0], [2, 2, 1], [1]]

    def texts(which: list[int]) -> list[list[int]]:
        engine = make_engine(CpuRunner(Backend(p, kernels)), made(q)())
        got = serve(engine, [prompts[i] for i in which], [params[i] for i in which])
        assert all(r.stats.disabled is None for r in got)
        return [r.output for r in got]

    together = texts([0, 1, 2, 3])
    assert [texts([i])[0] for i in range(4)] == together


def test_rows_that_are_no_distribution_are_told_and_places_must_exist() -> None:
    logits, q, tokens = drawn(3, 100, None)
    kernels = Nucleus(native_levels.opened(native_levels.BEST))
    logits[1] = torch.nan
    assert kernels.block_chances(logits, [0, 1], 1.0, q, [0, 1], tokens[:2]) is None
    for rows, index, token in (([3], [0], [1]), ([0], [3], [1]), ([0], [0], [100]), ([-1], [0], [1])):
        with pytest.raises(IndexError, match="no such chain"):
            kernels.block_chances(logits, rows, 1.0, q, index, token)
