"""The MLP speculator: one embedding, one projection, one norm and one head a step, or one of each for all steps.

    speculator.emb.{i}.weight [V, inner]    speculator.proj.{i}.weight    speculator.ln.{i}.{weight, bias}
    speculator.head.{i}.weight [V, inner]   tied: emb.0, ln.0, head.0, proj.0 and proj.1

Our MLP speculator uses the target's embedding and LM head through projections. Writing multiplies them out to full tables.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwood.core.forward import FINAL
from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.files.store import Head
from draftwood.errors import WeightsError
from draftwood.train.formats.conversion import Conversion, config_without_layer
from draftwood.train.formats.files import Found, Shapes, check_names, flag, integer, write_folder

MODEL_TYPE = "mlp_speculator"
PREFIX = "speculator."


def read(found: Found, conversion: Conversion) -> Head:
    stripped = {name.removeprefix(PREFIX): t for name, t in found.tensors.items()}
    found = Found(found.folder, found.config, found.file, stripped)
    vocab_size, d, n = (integer(found, found.config, key) for key in ("vocab_size", "emb_dim", "n_predict"))
    inner = d if found.config.get("inner_dim") in (None, 0) else integer(found, found.config, "inner_dim")
    tied, scaled = flag(found, found.config, "tie_weights"), flag(found, found.config, "scale_input")
    wanted, copies = _shapes(vocab_size, d, inner, n, tied)
    check_names(found, wanted, copies)
    for name in copies:  # a tied file may hold copies
        first = f"{name.split('.')[0]}.{1 if name.startswith('proj') else 0}.{name.split('.')[2]}"
        if name in found.tensors and not torch.equal(found.tensors[name], found.tensors[first]):
            raise WeightsError(f"{found.where}: {name} differs from {first}, but tie_weights is true")
    own = 1 if tied else n
    tensors = {f"proj.{i}.weight": found.tensors[f"proj.{i + 1}.weight"] for i in range(min(own, n - 1))}
    tensors["first.weight"] = found.tensors["proj.0.weight"]
    places = {"emb": "emb.{}.weight", "head": "head.{}.weight", "weight": "ln.{}.weight", "bias": "ln.{}.bias"}
    for ours, theirs in places.items():
        tensors[ours] = torch.stack([found.tensors[theirs.format(i)] for i in range(own)])
    layer = config_without_layer(inner, vocab_size, conversion.target)
    config = HeadConfig(
        "mlp", layer, d, (FINAL,), rows=vocab_size, stages=n, scale_input=scaled, tied=tied, own_tables=True
    )
    conversion.note(f"tables: {own} embeddings and {own} LM heads, {vocab_size} x {inner}")
    return Head(config, tensors, None, conversion.fingerprint)


def write(head: Head, out: Path, conversion: Conversion) -> None:
    c, n = head.config, head.config.stages
    own = 1 if c.tied else n
    emb, rows = _tables(head, own, conversion)
    tensors = {f"{PREFIX}proj.0.weight": head.tensors["first.weight"]}
    tensors |= {f"{PREFIX}proj.{i + 1}.weight": head.tensors[f"proj.{i}.weight"] for i in range(min(own, n - 1))}
    for i in range(own):
        tensors[f"{PREFIX}emb.{i}.weight"], tensors[f"{PREFIX}head.{i}.weight"] = emb[i], rows[i]
        tensors[f"{PREFIX}ln.{i}.weight"] = head.tensors["weight"][i]
        tensors[f"{PREFIX}ln.{i}.bias"] = head.tensors["bias"][i]
    raw: dict[str, Any] = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": MODEL_TYPE,
        "vocab_size": c.layer.vocab_size,
        "emb_dim": c.target_hidden,
        "inner_dim": c.layer.hidden_size,
        "n_predict": n,
        "top_k_tokens_per_head": [5, 4, 3, *[1] * n][:n],
        "n_candidates": 5,
        "tie_weights": c.tied,
        "scale_input": c.scale_input,
    }
    write_folder(out, raw, tensors, conversion.floats)


def _tables(head: Head, own: int, conversion: Conversion) -> tuple[list[Tensor], list[Tensor]]:
    """emb = E P^T and head = W Q over all tokens, repeated for each step as the format requires."""
    t, c = head.tensors, head.config
    if c.own_tables:
        order = slice(None) if head.ids is None else head.ids.argsort()
        if c.rows != c.layer.vocab_size:
            raise WeightsError(
                f"the head drafts {c.rows} of {c.layer.vocab_size} tokens, and this format has no draft vocabulary"
            )
        return list(t["emb"]), list(t["head"][:, order])
    target = conversion.need_target(
        "this head uses the target's embedding and LM head, which this format needs multiplied out"
    )
    emb, rows = target.embedding @ t["emb.weight"].T, target.lm_head @ t["head.weight"]
    conversion.note(
        f"tables: multiplied out, {c.layer.vocab_size} x {c.layer.hidden_size}, {own} embeddings and LM heads"
    )
    if head.ids is not None and c.rows < c.layer.vocab_size:
        conversion.note(f"vocabulary: all {c.layer.vocab_size} tokens, because this format has no draft vocabulary")
    return [emb] * own, [rows] * own


def _shapes(vocab_size: int, d: int, inner: int, n: int, tied: bool) -> tuple[Shapes, Shapes]:
    """(required tensors, optional copies)."""
    every: Shapes = {}
    for i in range(n):
        every |= {f"emb.{i}.weight": (vocab_size, inner), f"head.{i}.weight": (vocab_size, inner)}
        every |= {f"proj.{i}.weight": (inner, inner if i else d), f"ln.{i}.weight": (inner,), f"ln.{i}.bias": (inner,)}
    if not tied:
        return every, {}
    wanted = {name: s for name, s in every.items() if int(name.split(".")[1]) <= (1 if name.startswith("proj") else 0)}
    return wanted, {name: s for name, s in every.items() if name not in wanted}
