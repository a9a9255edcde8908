"""Two conventions for the same layers: which one was used is said, and both are written."""

from typing import Any

import pytest

from draftwood.errors import WeightsError
from draftwood.train.formats.conversion import Conversion
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
    conversion = Conversion(layer_ids=way)
    assert read_taps(config(top, nested), conversion, "config.json") == taps
    assert f"{said}'s convention" in conversion.notes[0]
    assert (len(conversion.notes) == 2) == (top == nested)  # only two equal lists contradict each other


def test_what_is_written_means_the_same_to_both():
    written = write_ids((2, 15, 27), Conversion())
    for way in ("vllm", "sglang"):
        assert read_taps(written, Conversion(layer_ids=way), "config.json") == (2, 15, 27)
    conversion = Conversion()
    assert "eagle_config" not in write_ids((0, 3, 5), conversion) and "left out" in conversion.notes[0]


def test_a_layer_below_the_first_is_refused():
    with pytest.raises(WeightsError, match="below the first layer"):
        read_taps(config([-1, 2, 3]), Conversion(), "config.json")
    with pytest.raises(WeightsError, match="no id for the final feature"):
        write_ids((-1,), Conversion())
