"""EAGLE-3 as the `speculators` package saves it: the layer is `layers.0`, its config is `transformer_layer_config`.

The package saves only what differs from the defaults of transformers' Llama config, so reading needs the defaults.
"""

from pathlib import Path
from typing import Any

from draftwood.drafters.nets.files.store import Head
from draftwood.errors import WeightsError
from draftwood.models.loading.hf_config import unparse
from draftwood.models.loading.resolve import PACKAGED
from draftwood.train.formats import layer_ids
from draftwood.train.formats.conversion import EMBEDDING, Conversion, Target
from draftwood.train.formats.eagle3 import read_body, shared_json, write_body
from draftwood.train.formats.files import CONFIG, Found, write_folder
from draftwood.train.formats.layer import layer_json, parse_layer

PREFIX = "layers.0."
LLAMA = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}
VERSION = "0.9.0"  # the version this was tested with


def read(found: Found, conversion: Conversion) -> Head:
    where = f"{(found.folder / CONFIG).as_posix()}: transformer_layer_config"
    raw = found.config.get("transformer_layer_config")
    if not isinstance(raw, dict):
        raise WeightsError(f"{where} should be an object, it is {raw!r}")
    kind = raw.get("model_type")
    normed = sorted(name for name in found.tensors if name.endswith(("q_norm.weight", "k_norm.weight")))
    if kind != "llama" or normed:
        raise WeightsError(
            f"{where} is of type {kind!r}{' with ' + ', '.join(normed) if normed else ''}; only 'llama' layers can be read"
        )
    return read_body(found, parse_layer({**LLAMA, **raw}, where), PREFIX, conversion)


def write(head: Head, out: Path, conversion: Conversion) -> None:
    c = head.config
    if c.norm_features and c.norm_fused:
        raise WeightsError("fc_norm and norm_before_fc exclude each other in this format, the head has both")
    tensors = write_body(head, PREFIX, conversion)
    target = conversion.target
    if target is None:
        conversion.note("embedding and verifier: left out, but the package needs a verifier; --target writes both")
    else:
        tensors[EMBEDDING] = target.embedding
        conversion.note(f"verifier: {_verifier(target)['name_or_path']}, which the package loads with the head")
    raw: dict[str, Any] = {
        "architectures": ["Eagle3DraftModel"],
        "model_type": "speculator_model",
        "speculators_model_type": "eagle3",
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
            ],
            "verifier": _verifier(target),
        },
        "transformer_layer_config": layer_json(c.layer, old_keys=False),
        "target_hidden_size": None,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        **shared_json(head),
        **layer_ids.top_only(c.taps),
    }
    write_folder(out, raw, tensors, conversion.floats)


def _verifier(target: Target | None) -> dict[str, Any]:
    """The target's name on the Hub, if it is one of our aliases."""
    if target is None:
        return {"name_or_path": None, "architectures": []}
    name = PACKAGED[target.name][3] if target.name in PACKAGED else target.name
    return {"name_or_path": name, "architectures": unparse(target.config)["architectures"]}
