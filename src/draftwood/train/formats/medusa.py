"""Medusa: heads on the final feature.

    original   medusa_lm_head.pt: {head}.{layer}.linear.{weight, bias}, {head}.{layers}.weight, the head's LM head
    vLLM       model.safetensors: blocks.{head}.layers.{layer}.weight (.bias), lm_heads.{head}.weight, token_map

Without LM heads in the file, the heads use the target's. LM heads that equal the target's (--target) are not stored.
"""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwood.core.forward import FINAL
from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.files.store import Head
from draftwood.errors import WeightsError
from draftwood.train.formats.conversion import Conversion, config_without_layer
from draftwood.train.formats.files import CONFIG, WEIGHTS, Found, Shapes, check_names, flag, integer, write_folder

PREFIX = re.compile(r"^medusa_heads?\.")
ORIGINAL, VLLM = re.compile(r"^(\d+)\.(\d+)\.(linear\.)?(weight|bias)$"), re.compile(r"^blocks\.(\d+)\.layers\.(\d+)\.")
FILE = "medusa_lm_head.pt"


def is_medusa(names: set[str]) -> bool:
    return any(ORIGINAL.match(PREFIX.sub("", name)) or VLLM.match(PREFIX.sub("", name)) for name in names)


def read(found: Found, conversion: Conversion) -> Head:
    found = Found(found.folder, found.config, found.file, {PREFIX.sub("", k): t for k, t in found.tensors.items()})
    vllm = any(VLLM.match(name) for name in found.tensors)
    stages, depth = _count(found, vllm)
    names = [_block(vllm, h, b) for h in range(stages) for b in range(depth)]
    width = _width(found, names[0])
    tables = _tables(found, vllm, stages, depth)
    vocab_size = _vocabulary(found, tables, conversion)
    ids = _token_map(found, vocab_size)
    _check(found, vllm, names, width, vocab_size, tables, ids)
    weights, biases = (
        torch.stack([found.tensors.get(f"{name}.{what}", torch.zeros(width)) for name in names])
        for what in ("weight", "bias")
    )
    blocks, biases = weights.unflatten(0, (stages, depth)), biases.unflatten(0, (stages, depth))
    rows = _rows(found, tables, ids, conversion)
    layer = config_without_layer(width, vocab_size, conversion.target)
    columns, own = vocab_size if ids is None else len(ids), rows is not None
    config = HeadConfig("medusa", layer, width, (FINAL,), rows=columns, stages=stages, depth=depth, own_tables=own)
    tensors = {"weight": blocks, "bias": biases}
    if rows is not None:
        tensors = {"blocks.weight": blocks, "blocks.bias": biases, "rows": rows}
    return Head(config, tensors, ids, conversion.fingerprint)


def write(head: Head, out: Path, conversion: Conversion) -> None:
    """Writes the original form. A head with a draft vocabulary is written in vLLM's, because the original has none."""
    c, own = head.config, head.config.own_tables
    blocks, biases = (head.tensors[f"{'blocks.' if own else ''}{what}"] for what in ("weight", "bias"))
    trimmed = own and head.ids is not None and c.rows < c.layer.vocab_size
    tensors: dict[str, Tensor] = {}
    for h in range(c.stages):
        for b in range(c.depth):
            at = _block(trimmed, h, b)
            tensors |= {f"{at}.weight": blocks[h, b], f"{at}.bias": biases[h, b]}
        table = _table(trimmed, h, c.depth)
        if own:
            rows = head.tensors["rows"][h]
            tensors[table] = rows if trimmed or head.ids is None else rows[head.ids.argsort()]
        elif conversion.target is not None:
            tensors[table] = conversion.target.lm_head
    if not own:
        conversion.note(
            "LM heads: a copy of the target's for each head"
            if conversion.target
            else "LM heads: left out, the target's is used; --target writes a copy for each head, which most readers need"
        )
    raw: dict[str, Any] = {
        "model_type": "medusa",
        "medusa_num_heads": c.stages,
        "medusa_num_layers": c.depth,
        "base_model_name_or_path": conversion.target.name if conversion.target else None,
        "hidden_size": c.target_hidden,
        "vocab_size": c.layer.vocab_size,
    }
    if trimmed:
        assert head.ids is not None
        conversion.note(f"form: vLLM's, with token_map: {c.rows} of {c.layer.vocab_size} tokens")
        tensors["token_map"] = head.ids.long()
        raw |= {"architectures": ["MedusaModel"], "num_heads": c.stages, "num_hidden_layers": c.depth}
        raw |= {"truncated_vocab_size": c.rows, "medusa_fc_bias": True, "original_lm_head": False}
    write_folder(out, raw, tensors, conversion.floats, WEIGHTS[0] if trimmed else FILE)


def _block(vllm: bool, head: int, block: int) -> str:
    return f"blocks.{head}.layers.{block}" if vllm else f"{head}.{block}.linear"


def _table(vllm: bool, head: int, depth: int) -> str:
    return f"lm_heads.{head}.weight" if vllm else f"{head}.{depth}.weight"


def _count(found: Found, vllm: bool) -> tuple[int, int]:
    """(heads, blocks per head) by the tensor names, which must agree with the config."""
    pattern = VLLM if vllm else re.compile(r"^(\d+)\.(\d+)\.linear\.")
    at = [tuple(map(int, match.groups()[:2])) for name in found.tensors if (match := pattern.match(name))]
    if not at:
        raise WeightsError(f"{found.where}: no block of a head among its {len(found.tensors)} tensors")
    heads, depth = max(h for h, _ in at) + 1, max(b for _, b in at) + 1
    for keys, have in ((("medusa_num_heads", "num_heads"), heads), (("medusa_num_layers", "num_hidden_layers"), depth)):
        key = next((key for key in keys if found.config.get(key) is not None), None)
        if key is not None and integer(found, found.config, key) != have:
            raise WeightsError(f"{found.folder / CONFIG}: {key} is {found.config[key]}, {found.file} has {have}")
    return heads, depth


def _width(found: Found, block: str) -> int:
    first = found.tensors.get(f"{block}.weight")
    if first is None or first.ndim != 2:
        raise WeightsError(f"{found.where}: the first block of head 0 is missing or not a matrix")
    return integer(found, found.config, "hidden_size", first.shape[0])


def _tables(found: Found, vllm: bool, stages: int, depth: int) -> list[str]:
    """Names of the LM heads; empty if the target's is used."""
    names = [_table(vllm, h, depth) for h in range(stages)]
    if vllm and flag(found, found.config, "original_lm_head"):
        return [next((n for n in ("lm_head.weight", names[0]) if n in found.tensors), names[0])] * stages
    return names if any(name in found.tensors for name in names) else []


def _vocabulary(found: Found, tables: list[str], conversion: Conversion) -> int:
    if found.config.get("vocab_size") is not None:
        return integer(found, found.config, "vocab_size")
    if tables and tables[0] in found.tensors and "token_map" not in found.tensors:
        return len(found.tensors[tables[0]])
    return conversion.need_target(f"{found.folder / CONFIG} does not say how many tokens there are").config.vocab_size


def _token_map(found: Found, vocab_size: int) -> Tensor | None:
    ids = found.tensors.get("token_map")
    if ids is None:
        return None
    if ids.dtype.is_floating_point or ids.ndim != 1:
        raise WeightsError(f"{found.where}: token_map should be a list of integers")
    if len(ids) != integer(found, found.config, "truncated_vocab_size", len(ids)):
        raise WeightsError(f"{found.where}: token_map has {len(ids)} tokens, truncated_vocab_size says otherwise")
    ids = ids.long()
    if bool((ids < 0).any()) or bool((ids >= vocab_size).any()) or len(ids.unique()) != len(ids):
        raise WeightsError(f"{found.where}: token_map names a token twice, or one out of range: there are {vocab_size}")
    return ids


def _check(
    found: Found, vllm: bool, blocks: list[str], d: int, vocab_size: int, tables: list[str], ids: Tensor | None
) -> None:
    wanted: Shapes = {f"{name}.weight": (d, d) for name in blocks}
    biases: Shapes = {f"{name}.bias": (d,) for name in blocks}
    optional: Shapes = {} if ids is None else {"token_map": (len(ids),)}
    if vllm and not flag(found, found.config, "medusa_fc_bias", any(name in found.tensors for name in biases)):
        biases = {}
    whole = ids is None or any(len(found.tensors[name]) == vocab_size for name in tables if name in found.tensors)
    wanted |= biases | {name: (vocab_size if whole or ids is None else len(ids), d) for name in tables}
    check_names(found, wanted, optional)


def _rows(found: Found, tables: list[str], ids: Tensor | None, conversion: Conversion) -> Tensor | None:
    if not tables:
        conversion.note("LM heads: none in the file; the target's is used")
        return None
    own = [found.tensors[name] for name in tables]
    if ids is not None:
        own = [t if len(t) == len(ids) else t[ids] for t in own]
    if conversion.target is not None:
        rows = conversion.target.lm_head if ids is None else conversion.target.lm_head[ids]
        if all(t.shape == rows.shape and torch.equal(t, rows) for t in own):
            conversion.note("LM heads: equal to the target's, which is used")
            return None
    conversion.note("LM heads: one for each head")
    return torch.stack(own)
