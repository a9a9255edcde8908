"""transformers as a reference: its own model class around the same weights."""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from draftwood.errors import ModelError
from draftwood.models.load import Loaded, load_weights


def reference(loaded: Loaded) -> Any:
    """A transformers causal LM with exactly our weights, read from the same files."""
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise ModelError("transformers is not installed\nhint: pip install 'draftwood[hf]'") from None
    from draftwood.models.hf_config import unparse

    config, tensors, _ = load_weights(loaded.name)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(unparse(config)))
        made = AutoConfig.from_pretrained(folder)
    dtype = loaded.model.dtype
    model = AutoModelForCausalLM.from_config(made, dtype=dtype, attn_implementation="sdpa")
    weights = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    missing, extra = model.load_state_dict(weights, strict=False)
    if extra or [name for name in missing if not (config.tie_embeddings and name == "lm_head.weight")]:
        raise ModelError(f"transformers wants other tensors: missing {missing[:3]}, extra {extra[:3]}")
    model.tie_weights()
    model.generation_config.eos_token_id = None
    return model.eval().to(torch.device("cpu"))
