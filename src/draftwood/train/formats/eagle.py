"""EAGLE and EAGLE-2: a folder with config.json and model.safetensors or pytorch_model.bin.

    embed_tokens.weight [V, d], a copy of the target's    fc.weight [d, 2d]    fc.bias    layers.0.*

There is no draft vocabulary and no LM head: logits come from the target's. If the config has no key `bias`, fc has a bias.
"""

from pathlib import Path

from draftwood.core.forward import FINAL
from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.files.store import Head
from draftwood.train.formats.conversion import EMBEDDING, Conversion, compare_embedding
from draftwood.train.formats.files import CONFIG, Found, check_names, flag, write_folder
from draftwood.train.formats.layer import gather, layer_json, parse_layer, scatter, shapes

PREFIX = "layers.0."


def read(found: Found, conversion: Conversion) -> Head:
    where = (found.folder / CONFIG).as_posix()
    layer = parse_layer(found.config, where)
    d, bias = layer.hidden_size, flag(found, found.config, "bias", default=True)
    wanted = {"fc.weight": (d, 2 * d), **shapes(layer, d, PREFIX)}
    if bias:
        wanted["fc.bias"] = (d,)
    said = "true" if "bias" in found.config else "missing, which means true"
    why = f"`bias` in {CONFIG} is {said}; set it to false if fc was trained without" if bias else ""
    absent = bias and "fc.bias" not in found.tensors
    check_names(found, wanted, {EMBEDDING: (layer.vocab_size, d)}, why if absent else "")
    compare_embedding(found, conversion)
    tensors = {name: t for name, t in found.tensors.items() if name.startswith("fc.")}
    tensors |= gather(found.tensors, layer, PREFIX)
    config = HeadConfig("eagle", layer, d, (FINAL,), rows=layer.vocab_size, bias=bias)
    return Head(config, tensors, None, conversion.fingerprint)


def write(head: Head, out: Path, conversion: Conversion) -> None:
    c = head.config
    tensors = {name: t for name, t in head.tensors.items() if name.startswith("fc.")}
    tensors |= scatter(head.tensors, c.layer, PREFIX)
    if conversion.target is not None:
        tensors[EMBEDDING] = conversion.target.embedding
    else:
        conversion.note("embedding: left out, so vLLM uses the target's; --target writes it for readers that need it")
    if head.ids is not None and c.rows < c.layer.vocab_size:
        conversion.note(f"vocabulary: all {c.layer.vocab_size} tokens, because this format has no draft vocabulary")
    if c.bias:
        conversion.note("bias: fc has one, but vLLM builds fc without")
    raw = {"architectures": ["LlamaForCausalLM"], **layer_json(c.layer, old_keys=True), "bias": c.bias}
    write_folder(out, raw, tensors, conversion.floats)
