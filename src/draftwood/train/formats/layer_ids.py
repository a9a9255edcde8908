"""The target layers that an EAGLE-3 head reads, and the two conventions of numbering them in files.

ours     tap l is the residual after l layers, the input of zero-based layer l
vLLM     reads the top-level `eagle_aux_hidden_state_layer_ids` and uses it unchanged: id l is tap l
SGLang   reads the list inside `eagle_config` and adds one: id l, a layer's output, is tap l + 1
"""

from collections.abc import Mapping
from typing import Any

from draftwood.errors import WeightsError
from draftwood.train.formats.conversion import Conversion

KEY, NESTED = "eagle_aux_hidden_state_layer_ids", "eagle_config"


def read_taps(config: Mapping[str, Any], conversion: Conversion, where: str) -> tuple[int, ...]:
    """Taps in the file's order. Notes the convention; without ids the taps are 2, L // 2, L - 3."""
    nested = config.get(NESTED)
    top = _ids(config.get(KEY), f"{where}: {KEY}")
    inner = _ids(nested.get(KEY) if isinstance(nested, Mapping) else None, f"{where}: {NESTED}.{KEY}")
    if top is None and inner is None:
        return _default(conversion, where)
    way = conversion.layer_ids
    if way == "auto":
        way = "vllm" if top is not None else "sglang"
    ids, place = (top, KEY) if inner is None or (way == "vllm" and top is not None) else (inner, f"{NESTED}.{KEY}")
    assert ids is not None
    taps = ids if way == "vllm" else tuple(i + 1 for i in ids)
    rule = "unchanged, vLLM's convention" if way == "vllm" else "plus one, SGLang's convention"
    conversion.note(f"layers: taps {list(taps)} from {place} {list(ids)}, {rule}")
    if top is not None and inner is not None and top != tuple(i + 1 for i in inner):
        conversion.note(
            f"layers: the two lists of {where} disagree: {KEY} {list(top)} unchanged, {NESTED} {list(inner)} plus one; "
            "--layer-ids chooses"
        )
    if min(taps) < 0:
        raise WeightsError(f"{where}: {place} {list(ids)} gives taps {list(taps)}, below the first layer")
    return taps


def write_ids(taps: tuple[int, ...], conversion: Conversion) -> dict[str, Any]:
    """Both lists, each in its readers' convention, so that vLLM and SGLang read the same layers."""
    top = top_only(taps)
    if min(taps) == 0:
        conversion.note(f"layers: {NESTED} left out, because SGLang's convention has no id for the embedding")
        return top
    conversion.note(f"layers: taps {list(taps)} as {KEY} for vLLM, one less inside {NESTED} for SGLang")
    return top | {NESTED: {"use_aux_hidden_state": True, KEY: [tap - 1 for tap in taps]}}


def top_only(taps: tuple[int, ...]) -> dict[str, Any]:
    """Only vLLM's list."""
    if min(taps) < 0:
        raise WeightsError(f"taps {list(taps)}: this format has no id for the final feature")
    return {KEY: list(taps)}


def _default(conversion: Conversion, where: str) -> tuple[int, ...]:
    why = f"{where} names no layers, and the default depends on the target's"
    layers = conversion.need_target(why).config.num_layers
    taps = (2, layers // 2, layers - 3)
    if min(taps) < 0 or max(taps) > layers:
        raise WeightsError(f"{where} names no layers, and a target of {layers} has no layers {list(taps)}")
    conversion.note(f"layers: none named; the default is 2, L // 2, L - 3: taps {list(taps)}")
    return taps


def _ids(value: Any, where: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value or any(isinstance(i, bool) or not isinstance(i, int) for i in value):
        raise WeightsError(f"{where} should be a list of layer ids, it is {value!r}")
    return tuple(value)
