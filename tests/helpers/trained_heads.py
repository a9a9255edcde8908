"""Heads that have learned a little of a small target, which runs on three backends with the same weights."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from draftwood import recipes
from draftwood.core.protocols import Runner
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.nets.files.store import Head, read, to_bytes
from draftwood.models.backends import int8_weights
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.models.decoder import Decoder
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.parts.tiny import CONFIG
from draftwood.testing.runs import make_engine, serve
from draftwood.train.data.dialogues import Dialogue
from draftwood.train.loop.batches import Batches
from draftwood.train.loop.teacher import Teacher
from draftwood.train.loop.trainer import LoopSettings, Trainer
from native_levels import BEST, kept_weights, opened
from own_layers import PROMPTS

EVERY = torch.arange(CONFIG.vocab_size)
TARGETS = ("float64", "int8", "device")


@cache
def target(name: str) -> Runner:
    """One of TARGETS, or "float32" for training."""
    if name == "int8":
        return CpuRunner(NativeDecoder(CONFIG, int8_weights.from_tensors(CONFIG, kept_weights(CONFIG)), opened(BEST)))
    dtype = torch.float32 if name == "float32" else torch.float64
    decoder = Decoder.from_tensors(CONFIG, kept_weights(CONFIG), dtype)
    return CudaRunner(decoder) if name == "device" else CpuRunner(decoder)


@cache
def answers() -> tuple[Dialogue, ...]:
    """What the target writes behind prompts, greedily and drawn."""
    model, found = target("float32"), list[Dialogue]()
    for temperature in (0.0, 1.0):
        each = [SamplingParams(max_tokens=40, temperature=temperature, seed=i) for i in range(2 * len(PROMPTS))]
        for r in serve(make_engine(model, recipes.build("autoregressive", model)), 2 * PROMPTS, each):
            found.append(Dialogue(np.array(r.known, dtype=np.int32), ((len(r.prompt), len(r.known)),), "chat"))
    return tuple(found)


def trained(recipe: str, steps: int = 80, **options: Any) -> Head:
    """As its file gives it back."""
    model: Any = target("float32")
    plan = recipes.load(recipe).training(model, EVERY, **options)
    with TemporaryDirectory() as folder:
        batches = Batches(list(answers()), tokens=256, seed=0)
        Trainer({recipe: plan}, Teacher(model), batches, LoopSettings(Path(folder), steps=steps), {}).run()
        tensors = {name: t.detach().float() for name, t in plan.net.state_dict().items()}
        path = Path(folder) / "head.safetensors"
        path.write_bytes(to_bytes(Head(plan.config, tensors, None, "", {})))
        return read(path)


def oracle(head: Head) -> Head:
    """A head of this shape that hands the newest token on: of a target that reads nothing else it guesses every token."""
    tensors = {name: torch.zeros_like(t) if t.ndim > 1 else t for name, t in head.tensors.items()}
    tensors["fc.weight"] = torch.eye(*head.tensors["fc.weight"].shape)
    return Head(head.config, tensors, None, "", {})


@cache
def target_of_one_token(name: str) -> Runner:
    """Its next token depends on the newest one alone, whose embedding is what its LM head reads, and is another one."""
    config = replace(CONFIG, tie_embeddings=False)
    weights = dict(kept_weights(config))
    for key, t in weights.items():
        if "o_proj" in key or "down_proj" in key:
            weights[key] = torch.zeros_like(t)
        elif key == "model.norm.weight":
            weights[key] = torch.ones_like(t)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].roll(1, 0)
    if name == "int8":
        return CpuRunner(NativeDecoder(config, int8_weights.from_tensors(config, weights), opened(BEST)))
    decoder = Decoder.from_tensors(config, weights, torch.float64)
    return CudaRunner(decoder) if name == "device" else CpuRunner(decoder)
