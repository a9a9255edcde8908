"""EAGLE-3 and 3.1 as first published: one layer called `midlayer`, an LM head and a norm.

fc.weight [d, taps * d]    midlayer.{hidden_norm, input_layernorm, post_attention_layernorm}.weight
midlayer.self_attn.{q,k,v}_proj.weight [*, 2d]    norm.weight    lm_head.weight [V_d, d]    d2t, t2d if V_d < V
3.1: input_norm.weight with norm_before_fc, fc_norm.{i}.weight with fc_norm

A draft vocabulary is two tensors:
    d2t   integers [V_d], offsets: column i is token i + d2t[i]
    t2d   booleans [V]: whether a token has a column
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.files.store import Head
from draftwood.errors import WeightsError
from draftwood.train.formats import layer_ids
from draftwood.train.formats.conversion import EMBEDDING, Conversion, compare_embedding, same_width
from draftwood.train.formats.files import CONFIG, Found, Shapes, check_names, flag, integer, write_folder
from draftwood.train.formats.layer import gather, layer_json, parse_layer, scatter, shapes

PREFIX = "midlayer."
FLAGS = {
    "norm_before_residual": "norm_before_residual",
    "norm_output": "norm_output",
    "fc_norm": "norm_features",
    "norm_before_fc": "norm_fused",
}


def read(found: Found, conversion: Conversion) -> Head:
    return read_body(found, parse_layer(found.config, (found.folder / CONFIG).as_posix()), PREFIX, conversion)


def write(head: Head, out: Path, conversion: Conversion) -> None:
    c = head.config
    if c.norm_before_residual:
        conversion.note("norm_before_residual: SGLang ignores it")
    raw = {"architectures": ["LlamaForCausalLMEagle3"], **layer_json(c.layer, old_keys=True), **shared_json(head)}
    raw |= {"target_hidden_size": c.target_hidden, **layer_ids.write_ids(c.taps, conversion)}
    conversion.note("embedding: left out, as usual; readers use the target's")
    write_folder(out, raw, write_body(head, PREFIX, conversion), conversion.floats)


def read_body(found: Found, layer: ModelConfig, prefix: str, conversion: Conversion) -> Head:
    """The part that both EAGLE-3 formats share. They differ in the layer's prefix and the place of its config."""
    raw: dict[str, Any] = _flags(found)
    d, vocab_size = layer.hidden_size, layer.vocab_size
    target_hidden = integer(found, found.config, "target_hidden_size", d)
    rows = integer(found, found.config, "draft_vocab_size", vocab_size)
    taps = layer_ids.read_taps(found.config, conversion, (found.folder / CONFIG).as_posix())
    config = HeadConfig("eagle3", layer, target_hidden, taps, rows=rows, **raw)
    optional: Shapes = {EMBEDDING: (vocab_size, d), "d2t": (rows,), "t2d": (vocab_size,)}
    wanted = body_shapes(config, prefix)
    tensors = dict(found.tensors)
    ids_known = "d2t" in tensors or rows == vocab_size
    if "lm_head.weight" not in tensors and conversion.target is not None and ids_known:
        optional["lm_head.weight"] = wanted.pop("lm_head.weight")
    why = "a head without lm_head uses the target's: --target" if "lm_head.weight" not in tensors else ""
    check_names(found, wanted, optional, why)
    head = Head(config, {}, _read_vocabulary(found, rows, vocab_size, conversion), "")
    same_width(head)
    compare_embedding(found, conversion)
    if "lm_head.weight" not in tensors:
        table = conversion.need_target("lm_head.weight is missing").lm_head
        if table.shape != (vocab_size, d):
            raise WeightsError(
                f"{found.where}: no lm_head, and the target's is {list(table.shape)}, not {[vocab_size, d]}"
            )
        tensors["lm_head.weight"] = table if head.ids is None else table[head.ids]
        conversion.note("LM head: not in the file; the target's is used")
    ours = {name: tensors[theirs] for name, theirs in _names(config, prefix).items()}
    return replace(head, tensors=ours | gather(tensors, layer, prefix), target=conversion.fingerprint)


def write_body(head: Head, prefix: str, conversion: Conversion) -> dict[str, Tensor]:
    same_width(head)
    c, ours = head.config, head.tensors
    maps, order = _write_vocabulary(head.ids, c.layer.vocab_size)
    if c.target_rows:
        table = conversion.need_target("its head is the target's, which the format needs in full").lm_head
        rows = table if head.ids is None else table[head.ids]
        conversion.note("LM head: the target's, written in full")
    else:
        rows = ours["lm_head.weight"]
    tensors = {"lm_head.weight": rows if order is None else rows[order], **maps}
    tensors |= {theirs: ours[name] for name, theirs in _names(c, prefix).items() if name != "lm_head.weight"}
    return tensors | scatter(ours, c.layer, prefix)


def shared_json(head: Head) -> dict[str, Any]:
    c = head.config
    return {"draft_vocab_size": c.rows, **{theirs: getattr(c, ours) for theirs, ours in FLAGS.items()}}


def body_shapes(c: HeadConfig, prefix: str) -> Shapes:
    d, wide = c.layer.hidden_size, c.target_hidden * len(c.taps)
    size = {"fc.weight": (d, wide), "lm_head.weight": (c.rows, d), "fused_norm": (wide,)}
    own = {theirs: size.get(ours, (d,)) for ours, theirs in _names(c, prefix).items()}
    own |= {f"fc_norm.{i}.weight": (c.target_hidden,) for i in range(len(c.taps)) if c.norm_features}
    return {**own, **shapes(c.layer, 2 * d, prefix)}


def _names(c: HeadConfig, prefix: str) -> dict[str, str]:
    """Our names to theirs, without the layer's matrices."""
    names = {
        "fc.weight": "fc.weight",
        "embed_norm": f"{prefix}input_layernorm.weight",
        "hidden_norm": f"{prefix}hidden_norm.weight",
        "norm": "norm.weight",
        "lm_head.weight": "lm_head.weight",
    }
    if c.norm_features:
        names |= {f"feature_norms.{i}": f"fc_norm.{i}.weight" for i in range(len(c.taps))}
    if c.norm_fused:
        names["fused_norm"] = "input_norm.weight"
    return names


def _flags(found: Found) -> dict[str, bool]:
    """Flags from the top level or `eagle_config`. WeightsError if the two disagree."""
    nested = found.config.get(layer_ids.NESTED)
    nested = nested if isinstance(nested, Mapping) else {}
    flags: dict[str, bool] = {}
    for theirs, ours in FLAGS.items():
        values = {flag(found, place, theirs) for place in (found.config, nested) if place.get(theirs) is not None}
        if len(values) > 1:
            raise WeightsError(
                f"{found.folder / CONFIG}: {theirs!r} is both true and false, inside eagle_config and outside"
            )
        flags[ours] = values == {True}
    if flags["norm_features"] and flags["norm_fused"]:
        raise WeightsError(f"{found.folder / CONFIG}: fc_norm and norm_before_fc exclude each other, both are true")
    return flags


def _read_vocabulary(found: Found, rows: int, vocab_size: int, conversion: Conversion) -> Int[Tensor, "W"] | None:
    """Token of each column, or None for the whole vocabulary. WeightsError if d2t and t2d disagree."""
    d2t, t2d = found.tensors.get("d2t"), found.tensors.get("t2d")
    if d2t is None:
        if rows != vocab_size:
            raise WeightsError(f"{found.where}: {rows} of {vocab_size} tokens have columns, but d2t is missing")
        return None
    if d2t.dtype.is_floating_point or d2t.dtype is torch.bool:
        raise WeightsError(f"{found.where}: d2t has type {d2t.dtype}, it should hold integers")
    ids, wrong = torch.arange(rows) + d2t.long(), ""
    bad = (ids < 0) | (ids >= vocab_size)
    tokens, counts = ids.unique(return_counts=True)
    if bool(bad.any()):
        at = int(bad.nonzero()[0])
        wrong = f"column {at} to token {int(ids[at])}, out of range: there are {vocab_size}"
    elif len(tokens) != rows:
        wrong = f"two columns to token {int(tokens[counts > 1][0])}"
    if wrong:
        hint = "d2t holds offsets, token = column + d2t[column]"
        raise WeightsError(f"{found.where}: d2t sends {wrong}\nhint: {hint}")
    if t2d is None:
        conversion.note("vocabulary: t2d is missing; d2t is used")
    elif not torch.equal(t2d.bool().nonzero().flatten(), tokens):
        kept = t2d.bool().nonzero().flatten()
        odd = int(torch.cat([kept[~torch.isin(kept, tokens)], tokens[~torch.isin(tokens, kept)]])[0])
        raise WeightsError(f"{found.where}: t2d and d2t disagree, for example about token {odd}")
    if rows == vocab_size and torch.equal(ids, torch.arange(vocab_size)):
        return None
    return ids


def _write_vocabulary(
    ids: Int[Tensor, "W"] | None, vocab_size: int
) -> tuple[dict[str, Tensor], Int[Tensor, "W"] | None]:
    """(d2t and t2d, order of the LM-head rows): readers of t2d expect sorted tokens."""
    if ids is None:
        return {}, None
    order = ids.argsort()
    tokens = ids[order].long()
    if len(tokens) == vocab_size:
        return {}, order
    keep = torch.zeros(vocab_size, dtype=torch.bool)
    keep[tokens] = True
    return {"d2t": tokens - torch.arange(len(tokens)), "t2d": keep}, order
