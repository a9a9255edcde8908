"""Before kernels run a model on a device, a few small passes are computed by them and by stock operations, and compared.

So a compiler or a device on which they fail costs speed, never a wrong text.
"""

import copy
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from draftwood.core.forward import FINAL, ForwardInput, Span
from draftwood.core.host import put
from draftwood.errors import OptionError
from draftwood.kernels.gpu.launch import LEAST_CAPABILITY, runs_on
from draftwood.kernels.gpu.twins import Twins
from draftwood.models.decoder import Backend, Decoder
from draftwood.runners.fused import unsupported

log = logging.getLogger("draftwood")

SWITCH = "DRAFTWOOD_GPU_KERNELS"
AUTO, STOCK = "auto", "stock"
CHECKED_LAYERS = 2
AGAIN = 3  # times that each pass is repeated; the same staged entries are written again
LEAST_ERROR = 0.02  # of a row, relative to its size: some rounding steps of 16 bits
MOST_TIMES = 3.0  # the error of stock operations
# (known tokens, nodes of a random tree below them) of two slots: passes that together run every kernel, and products of
# every bucket of rows.
PASSES: tuple[tuple[tuple[int, int], ...], ...] = (
    ((70, 0), (3, 0)),
    ((1, 12), (2, 5)),
    ((1, 30), (2, 20)),
    ((1, 0), (1, 0)),
)


def operations_for(model: Decoder, *, invariant: bool, check: Callable[[Decoder, Twins], str]) -> Twins | None:
    """The kernels, if they can run a model where it is and agree with stock operations there; else None, with the reason in
    the log. `check`: what is wrong with them on this device, or an empty text. OptionError if nothing else will do."""
    level, why = logging.INFO, _switched_off() or unsupported(model)
    if not why and not runs_on(model.device):
        why = f"no Triton, or compute capability below {LEAST_CAPABILITY}"
    if not why:
        from draftwood.kernels.gpu.operations import Operations  # Triton is imported only where it runs

        found: Any = Operations(invariant)
        level, why = logging.WARNING, check(model, found)
        if not why:
            log.info("our kernels on %s: checked against stock operations", model.device)
            return found
    if invariant:
        raise OptionError(f"batch_invariant: our kernels do not run this model here: {why}\nhint: leave it out")
    log.log(level, "stock operations instead of our kernels on %s: %s", model.device, why)
    return None


def _switched_off() -> str:
    chosen = os.environ.get(SWITCH, AUTO)
    if chosen not in (AUTO, STOCK):
        raise OptionError(f"{SWITCH} cannot be {chosen!r}\nhint: {AUTO} or {STOCK}")
    return STOCK if chosen == STOCK else ""


def exact_copy(model: Decoder, dtype: torch.dtype = torch.float32) -> Decoder:
    """The same layers with more bits. Its embedding and head are the model's, so its passes must be given hidden states."""
    layers: Any = copy.deepcopy(model.layers).to(dtype)
    assert model.norm is not None
    return Decoder(model.config, model.embedding, layers, model.norm.to(dtype), model.lm_head, Backend())  # type: ignore[arg-type]


def difference(exact: Any, stock: Any, fused: Any) -> str:
    """What the fused runner of a model computes wrong; empty if nothing. Wrong is an error several times that of the stock
    runner. All are opened, with two slots of at least 256 entries; `exact` runs the same weights with more bits."""
    noise = torch.Generator().manual_seed(0)
    taps = frozenset({1, FINAL})
    for runner in (exact, stock, fused):
        for slot in range(2):
            runner.admit(slot, [0, 1])
    for number, sizes in enumerate(PASSES):
        done = [stock.length(slot) for slot in range(2)]
        x, kept, tokens = _drawn(sizes, done, stock.info.vocab_size, noise, stock.info.device)
        given = x.starting_from(stock.embed(x.ids).to(exact.model.dtype))
        right = exact.execute(replace(given, want=x.want[:0]), taps=taps)
        usual = stock.execute(x, taps=taps)
        found = fused.execute(x, taps=taps)
        for _ in range(AGAIN):  # kernels overlap: one that does not wait for another may be right at times
            before = found.hidden.clone().view(torch.uint8)
            found = fused.execute(x, taps=taps)
            if not torch.equal(found.hidden.contiguous().view(torch.uint8), before):
                return f"hidden states of pass {number} are not the same every time"
        places = found.logits_index[x.want]
        for name, theirs, ours, exactly in (
            ("hidden states", usual.hidden, found.hidden, right.hidden),
            *((f"tap {tap}", usual.features[tap], found.features[tap], right.features[tap]) for tap in sorted(taps)),
            ("logits", None, found.logits[places], stock.head(found.hidden)),
        ):
            most = LEAST_ERROR if theirs is None else LEAST_ERROR + MOST_TIMES * row_error(theirs, exactly)
            error = row_error(ours, exactly)
            if not error <= most:
                return f"{name} of pass {number} are wrong by {error:.2g} of their size, at most {most:.2g} is rounding"
        best = found.best[places].tolist()
        if best != found.logits[places].argmax(dim=-1).tolist():
            return f"the greatest logits of pass {number} are elsewhere"
        for runner in (exact, stock, fused):
            runner.commit([0, 1], kept, tokens)
    return ""


def row_error(found: Tensor, right: Tensor) -> float:
    """The greatest error of a row, relative to the row's size. NaN if a number is none."""
    found, right = found.to(right.dtype), right
    return float(((found - right).norm(dim=-1) / right.norm(dim=-1).clamp_min(1e-6)).max())


def _drawn(
    sizes: Sequence[tuple[int, int]], done: Sequence[int], vocab_size: int, noise: torch.Generator, device: torch.device
) -> tuple[ForwardInput, list[list[int]], list[list[int]]]:
    """A pass over two slots with random trees, the path that is kept in each, and its tokens."""
    columns: list[list[int]] = [[], [], [], [], []]
    spans: list[Span] = []
    kept: list[list[int]] = []
    tokens: list[list[int]] = []
    for slot, ((known, nodes), before) in enumerate(zip(sizes, done, strict=True)):
        parents = list(range(-1, known - 1))
        parents += [_below(known - 1, known + i, noise) for i in range(nodes)]
        depths: list[int] = []
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        ids = torch.randint(vocab_size, (len(parents),), generator=noise).tolist()
        at = len(columns[0])
        spans.append(Span(slot, at, at + len(ids), before, 0, known))
        own = (ids, [slot] * len(ids), [before + d for d in depths], list(range(len(ids))), parents)
        for column, more in zip(columns, own, strict=True):
            column += more
        path = [len(ids) - 1]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        kept.append(path)
        tokens.append([ids[i] for i in path])
    total = len(columns[0])
    made = (put(column, device) for column in columns)
    return ForwardInput(*made, want=put(list(range(total)), device), spans=tuple(spans)), kept, tokens


def _below(low: int, high: int, noise: torch.Generator) -> int:
    return int(torch.randint(low, high, (1,), generator=noise))
