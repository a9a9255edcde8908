"""Two conventions for the same layers: which one was used is said, and both are written."""

from typing import Any

import pytest

from draftwood.errors import WeightsError
from draftwood.train.formats.exchange import Exchange
from draftwood.train.formats.layer_ids import read_taps, write_ids

KEY = "eagle_aux_hidden_state_layer_ids"


def config(top: Any = None, nested: Any = None) -> dict[str, Any]:
    found: dict[str, Any] = {} if top is None else {KEY: top}
    return found if nested is None else {**found, "eagle_config": {KEY: nested}}


@pytest.mark.parametrize(
    ("top", "nested", "way", "taps", "said"),
    [
        ([2, 15, 27], None, "auto", (2, 15, 27), "vLLM"),
        (None, [1, 14, 26], "auto", (2, 15, 27), "SGLang"),
        ([2, 15, 27], [1, 14, 26], "auto", (2, 15, 27), "vLLM"),
        ([2, 15, 27], [1, 14, 26], "sglang", (2, 15, 27), "SGLang"),
        ([1, 14, 26], None, "sglang", (2, 15, 27), "SGLang"),
        (None, [2, 15, 27], "vllm", (2, 15, 27), "vLLM"),
        ([2, 15, 27], [2, 15, 27], "auto", (2, 15, 27), "vLLM"),
        ([2, 15, 27], [2, 15, 27], "sglang", (3, 16, 28), "SGLang"),
    ],
)
def test_the_convention_is_used_and_named(top: Any, nested: Any, way: Any, taps: Any, said: str):
    exchange = Exchange(layer_ids=way)
    assert read_taps(config(top, nested), exchange, "config.json") == taps
    assert f"{said}'s convention" in exchange.said[0]
    assert (len(exchange.said) == 2) == (top == nested)  # only two equal lists contradict each other


def test_what_is_written_means_the_same_to_both():
    written = write_ids((2, 15, 27), Exchange())
    for way in ("vllm", "sglang"):
        assert read_taps(written, Exchange(layer_ids=way), "config.json") == (2, 15, 27)
    exchange = Exchange()
    assert "eagle_config" not in write_ids((0, 3, 5), exchange) and "left out" in exchange.said[0]


def test_a_layer_below_the_first_is_refused():
    with pytest.raises(WeightsError, match="below the first layer"):
        read_taps(config([-1, 2, 3]), Exchange(), "config.json")
    with pytest.raises(WeightsError, match="not the final feature"):
        write_ids((-1,), Exchange())
