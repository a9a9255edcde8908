"""The teacher shows what its model's own passes see: all taps, any backend, windows, norms, padding."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.cache.dense import DenseCache
from draftwood.core.forward import FINAL, ForwardInput
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.models.loading.load import Loaded
from draftwood.runners.open import runner_of
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.train.loop.teacher import Teacher, passes, read_features

SHAPES = {
    "plain": CONFIG,
    "window": replace(CONFIG, sliding_window=7),
    "qk_norm": replace(CONFIG, qk_norm=True),
}


def batch(vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(vocab_size, (3, 24), generator=torch.Generator().manual_seed(0))
    live = torch.arange(24) < torch.tensor([24, 9, 17])[:, None]
    return ids * live, live


def own_pass(model: Any, ids: torch.Tensor, taps: frozenset[int]) -> dict[int, torch.Tensor]:
    """One text, all at once, as the engine runs a prompt."""
    cache = DenseCache(model.cache_specs, slots=1, capacity=64)
    cache.admit(0, ids.tolist())
    cache.reserve([0], [len(ids)])
    at = torch.arange(len(ids))
    x = ForwardInput(ids, torch.zeros_like(ids), at, at, at - 1, want=at[:0])
    return model.forward(x, cache, taps=taps).features


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("most", [1, 5, 20, 512])
def test_features_of_a_float_decoder(shape: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In passes of one token, of a part of a text, of one text and the next one's beginning, of all texts."""
    monkeypatch.setattr("draftwood.train.loop.teacher._CHUNK", most)
    target = tiny_runner(config=SHAPES[shape])
    ids, live = batch(CONFIG.vocab_size)
    taps = frozenset({0, 1, 3, CONFIG.num_layers, FINAL})
    found = read_features(target, ids, live, taps)
    assert set(found) == taps
    for b in range(3):
        size = int(live[b].sum())
        right = own_pass(target.model, ids[b, :size], taps)
        for tap in taps:
            torch.testing.assert_close(found[tap][b, :size], right[tap], rtol=1e-10, atol=1e-10)
            assert not found[tap][b, size:].any(), "nothing is known of padding"


def test_passes_hold_every_token_once_in_order_and_no_more_than_they_may() -> None:
    texts = [list(range(5)), list(range(12)), [], [0], list(range(4))]
    for most in (1, 4, 7, 100):
        found = passes(texts, most)
        sizes = [sum(len(chunk.tokens) for chunk in part) for part in found]
        assert set(sizes[:-1]) <= {most} and sizes[-1] <= most, "each is full but the last"
        for part in found:
            assert len({chunk.slot for chunk in part}) == len(part), "no text twice in a pass"
        for slot, text in enumerate(texts):
            mine = [chunk for part in found for chunk in part if chunk.slot == slot]
            assert [token for chunk in mine for token in chunk.tokens] == text
            assert all(chunk.done == chunk.tokens[0] for chunk in mine), "each goes on where the last one ended"


def test_control_the_window_changes_the_features() -> None:
    """A twin: without it the features differ, so the test above can tell."""
    ids, live = batch(CONFIG.vocab_size)
    one, two = (
        read_features(tiny_runner(config=SHAPES[shape]), ids, live, frozenset({FINAL})) for shape in ("plain", "window")
    )
    assert torch.allclose(one[FINAL][:, :7], two[FINAL][:, :7]) and not torch.allclose(one[FINAL][0], two[FINAL][0])


def test_features_of_the_int8_backend_are_its_own_to_the_bit(tiny: Loaded) -> None:
    if not isinstance(tiny.model, NativeDecoder):
        pytest.skip("no native kernels here")
    ids, live = batch(258)
    taps = frozenset({0, 1, FINAL})
    shown = Teacher(runner_of(tiny)).show(ids, live, live, taps, 0)
    for b in range(3):
        size = int(live[b].sum())
        right = own_pass(tiny.model, ids[b, :size], taps)
        for tap in taps:
            assert torch.equal(shown.features[tap][b, :size], right[tap]) and not shown.features[tap][b, size:].any()
            assert not shown.features[tap].is_inference(), "learners must be able to save them for backward"


def test_features_do_not_depend_on_the_size_of_chunks(tiny: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, live = batch(258)
    taps = frozenset({1, FINAL})
    whole = read_features(runner_of(tiny), ids, live, taps)
    monkeypatch.setattr("draftwood.train.loop.teacher._CHUNK", 5)
    parts = read_features(runner_of(tiny), ids, live, taps)
    for tap in taps:
        torch.testing.assert_close(whole[tap], parts[tap], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("keep", [None, torch.tensor([3, 5, 40])])
def test_rows_are_those_of_the_head(keep: torch.Tensor | None, tiny: Loaded) -> None:
    for target in (tiny_runner(), runner_of(tiny)):
        teacher = Teacher(target)
        rows = teacher.rows(keep)
        x = torch.randn(4, rows.shape[1], generator=torch.Generator().manual_seed(1)).to(rows.dtype)
        logits = target.head(x, ids=keep, norm=False)
        error = float((x @ rows.T - logits).abs().max() / logits.abs().max())
        assert error < (1e-10 if rows.dtype == torch.float64 else 0.03)  # int8 rounds what it multiplies
        assert teacher.rows(keep) is rows, "made once"
