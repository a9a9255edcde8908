"""Completions: k continuations of one text by superposed passes of the model itself, in a cache of their own.

Lossy: the passes read mixtures of tokens, so the texts follow no distribution of the model. Nothing here verifies them.
"""

from collections.abc import Callable, Sequence

import torch

from draftwood.core.forward import ForwardInput, HostInput
from draftwood.core.protocols import Runner
from draftwood.drafters.superposed.beam import Beam
from draftwood.drafters.superposed.ngrams import Counts, TextCounts
from draftwood.drafters.superposed.superposition import Superposition, mixed_input, ranked

CHUNK = 512  # prompt tokens of a pass


@torch.inference_mode()
def complete(
    runner: Runner,
    prompt: Sequence[int],
    superposition: Superposition,
    max_tokens: int,
    ended: Callable[[Sequence[int]], bool],
    counts: Counts | None = None,
) -> tuple[Beam, int]:
    """The drafts of at most `max_tokens` tokens, and the number of passes. `runner`: with a cache of one slot, which this
    fills. `counts`: of n-grams; None: those of the prompt and the drafts."""
    if counts is None and superposition.alpha:
        counts = own = TextCounts()
        own.read(prompt)

    def tail(path: Sequence[int], count: int) -> list[int]:
        return [*prompt[max(0, len(prompt) + len(path) - count) :], *path][-count:]

    x, passes = _read(runner, prompt)
    output = runner.execute(x)
    runner.commit([0], [x.to_host().entries], [x.to_host().ids])
    beam, most = superposition.begin(), max(superposition.kept, 2 * superposition.k)
    while True:
        logits, passes = output.logits[output.logits_index[x.want]], passes + 1
        beam = superposition.advanced(beam, ranked(logits, most) * len(beam.alive), counts, tail, ended)
        if beam.done or len(beam.alive[0].tokens) >= max_tokens:
            return beam, passes
        # One KV entry for all drafts, behind the committed ones.
        runner.reserve([0], [1])
        x = mixed_input(runner, [beam], [0], [0], [runner.length(0)])
        output = runner.execute(x)
        runner.commit([0], [[0]], [x.to_host().ids])


def _read(runner: Runner, prompt: Sequence[int]) -> tuple[ForwardInput, int]:
    """Run a prompt but for its last chunk; that one, with logits after its last token, and the number of passes."""
    runner.admit(0, prompt, 0)
    device, passes = runner.info.device, 0
    while True:
        done = runner.length(0)
        part = list(prompt[done : done + CHUNK])
        size, last = len(part), done + CHUNK >= len(prompt)
        columns = HostInput(part, [0] * size, list(range(size)), list(range(-1, size - 1)))
        x = ForwardInput.of(columns, list(range(done, done + size)), [size - 1] if last else [], device)
        runner.reserve([0], [size])
        if last:
            return x, passes
        runner.execute(x)
        runner.commit([0], [columns.entries], [part])
        passes += 1
