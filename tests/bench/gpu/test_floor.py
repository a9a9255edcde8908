"""The floor of a pass counts what it reads."""

import pytest
import torch

from draftwood.bench.gpu.floor import bandwidth, copied_per_second, entry_bytes, floor_ms, weight_bytes
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder


def test_a_pass_reads_every_matrix_and_norm_once_and_the_head() -> None:
    model = tiny_decoder(dtype=torch.float32)
    c = CONFIG
    wide = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
    layer = c.hidden_size * (wide + c.num_heads * c.head_dim + 3 * c.intermediate_size) + 2 * c.hidden_size
    assert weight_bytes(model) == 4 * (c.num_layers * layer + c.vocab_size * c.hidden_size)
    assert entry_bytes(model) == 4 * 2 * c.num_layers * c.num_kv_heads * c.head_dim


def test_the_floor_grows_with_the_context_of_every_sequence() -> None:
    model = tiny_decoder(dtype=torch.float32)
    one = floor_ms(model, 1, 0, 1e9)
    assert one == pytest.approx(weight_bytes(model) / 1e6)
    assert floor_ms(model, 4, 100, 1e9) - one == pytest.approx(400 * entry_bytes(model) / 1e6)
    assert floor_ms(model, 1, 0, 2e9) == pytest.approx(one / 2)


def test_a_copy_reads_and_writes() -> None:
    assert copied_per_second(1000, 0.5) == 4000
    times = iter([9.0, 1.0, 2.0, 3.0])  # the first is a warm-up

    def clock(run: object) -> float:
        return next(times)

    assert bandwidth(torch.device("cpu"), clock, size=400, repeats=3) == 400
