"""transformers as a peer and as a reference: its own model class around the same weights, its own generate."""

import gc
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from draftwood.bench.provenance import device_name
from draftwood.bench.spec.peers import Settings
from draftwood.core.host import on_host
from draftwood.core.model_info import CPU
from draftwood.errors import ModelError
from draftwood.models.backends.choose import precision
from draftwood.models.loading.load import check_device, load_weights

LOOKUP_TOKENS = 10  # as its documentation shows it


def model_of(name: str, dtype: torch.dtype, device: torch.device = CPU) -> Any:
    """A transformers causal LM with exactly our weights, read from the same files, without loading our own model."""
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise ModelError("transformers is not installed\nhint: pip install 'draftwood[hf]'") from None
    from draftwood.models.loading.hf_config import unparse

    if name.startswith("hf:"):
        found: Any = AutoModelForCausalLM.from_pretrained(name.removeprefix("hf:"), dtype=dtype)
        return found.eval().to(device)
    config, tensors, _ = load_weights(name)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(unparse(config)))
        made = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(made, dtype=dtype, attn_implementation="sdpa")
    weights = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    missing, extra = model.load_state_dict(weights, strict=False)
    if extra or [name for name in missing if not (config.tie_embeddings and name == "lm_head.weight")]:
        raise ModelError(f"transformers expects other tensors: missing {missing[:3]}, extra {extra[:3]}")
    model.tie_weights()
    model.generation_config.eos_token_id = None
    return model.eval().to(device)


def generate(model: Any, prompt: Sequence[int], max_tokens: int, eos: Sequence[int], **options: Any) -> list[int]:
    """The answer to a prompt by transformers' own generate."""
    ids = torch.tensor([list(prompt)], device=model.device)
    end = {"eos_token_id": list(eos) or None, "pad_token_id": eos[0] if eos else 0}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, **end, **options)
    return out[0, len(prompt) :].tolist()


class Transformers:
    """`generate`, plain or with prompt lookup: in float32 on a CPU, elsewhere as our recipes. Keeps nothing between two
    calls."""

    model: Any
    settings: Settings

    def __init__(self, *, lookup: bool) -> None:
        self.lookup = lookup
        self.widths: list[int] = []  # tokens of each pass of the current answer

    def open(self, settings: Settings) -> dict[str, Any]:
        import transformers

        transformers.logging.set_verbosity_error()
        torch.set_num_threads(settings.threads)
        device = check_device(settings.device, settings.dtype)
        dtype = torch.float32 if on_host(device) else precision(settings.dtype, device)
        assert isinstance(dtype, torch.dtype)  # int8 runs on a CPU only
        self.settings, self.model = settings, model_of(settings.model, dtype, device)
        self.model.register_forward_pre_hook(self._count, with_kwargs=True)
        facts: dict[str, Any] = {
            "transformers": transformers.__version__,
            "precision": str(dtype).removeprefix("torch."),
            "device": device_name(device),
        }
        if self.lookup:
            facts["prompt_lookup_num_tokens"] = LOOKUP_TOKENS
        return {**facts, "threads": torch.get_num_threads()}

    def _count(self, _: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids = named.get("input_ids", arguments[0] if arguments else None)
        self.widths.append(0 if ids is None else int(ids.shape[-1]))

    def answer(self, method: str, prompt: Sequence[int], index: int) -> dict[str, Any]:
        s = self.settings
        first = _FirstToken()
        options: dict[str, Any] = {"do_sample": False}
        if s.temperature > 0:  # other random numbers: comparable in speed only
            torch.manual_seed(s.seed + index)
            options = {"do_sample": True, "temperature": s.temperature, "top_k": 0, "top_p": 1.0}
        if self.lookup:
            options["prompt_lookup_num_tokens"] = LOOKUP_TOKENS
        self.widths = []
        gc.collect()
        start = perf_counter()
        tokens = generate(self.model, prompt, s.max_tokens, s.eos, stopping_criteria=[first], **options)
        end = perf_counter()
        passes = len(self.widths)
        # The first pass reads the prompt, every other one the newest token; the remaining tokens were drafted.
        drafted = sum(self.widths) - len(prompt) - (passes - 1)
        return {
            "tokens": tokens,
            "emitted": len(tokens),
            "seconds": end - start,
            "first_seconds": (first.time or end) - start,
            "decode_seconds": end - (first.time or end),
            "passes": passes,
            "drafted": drafted if self.lookup else 0,
            "accepted": len(tokens) - passes if self.lookup else 0,
            "finish": "stop" if tokens and tokens[-1] in s.eos else "length",
            "counted": "ids that generate returned",
        }


class _FirstToken:
    """A stopping criterion that never stops and records the time of its first call."""

    time: float = 0.0

    def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if not self.time:
            if ids.is_cuda:
                torch.cuda.synchronize(ids.device)
            self.time = perf_counter()
        return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
