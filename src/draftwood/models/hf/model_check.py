"""Checks before a transformers model is used: what it caches per token, and whether it follows a tree mask.

slot 0    a b c ─ d ┬ e        a b c is committed, then the tree runs in one pass, together with slot 1
                    └ f ─ g    every node must give the logits that its own path gives when run alone
slot 1    h i j
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from draftwood.core.forward import CacheSpec, ForwardInput, Segment
from draftwood.core.protocols import Cache
from draftwood.errors import ModelError
from draftwood.models.hf.cache import Windows

if TYPE_CHECKING:
    from transformers import DynamicCache

    from draftwood.models.hf.model import HFModel

NARROW = 3  # the window during the check, so that six tokens exceed it
PROMPT, TREE, OTHER = [0, 1, 2], [3, 4, 5, 6], [7, 8, 9]  # letters of the drawing above
PARENTS, DEPTHS = [-1, 0, 0, 2], [3, 4, 4, 5]
PATHS = {1: [0, 1, 2, 3, 4], 3: [0, 1, 2, 3, 5, 6], 6: [7, 8, 9]}  # place in the pass -> the path that ends there


def inspect(net: Any, name: str) -> dict[str, Any]:
    """Windows, cache specs, vocabulary size, layers and final norm, observed in one small call."""
    from transformers import DynamicCache

    text = net.config.get_text_config()
    windows = _windows(text, name)
    layers = _layers(net.get_decoder(), text.num_hidden_layers, name)
    cache = DynamicCache(config=net.config)
    with torch.inference_mode(), _calls(net.get_decoder(), layers) as calls:
        try:
            out = net(input_ids=_tokens(PROMPT, net), past_key_values=cache, use_cache=True)
        except Exception as error:  # families raise many types when given a plain cache
            raise _refusal(name, f"it cannot run on a plain cache: {error}") from error
    return {
        "windows": windows,
        "cache_specs": _cache_specs(cache, name),
        "vocab_size": out.logits.shape[-1],
        "layers": layers,
        "norm": _norm(calls, net.get_decoder(), layers),
    }


def check(model: "HFModel") -> None:
    """ModelError if a node of a tree has other logits than its own path run alone."""
    narrowed = copy.copy(model)
    narrowed.windows = {kind: window and NARROW for kind, window in model.windows.items()}
    narrow = any(narrowed.windows.values())
    with torch.inference_mode(), _window(model.net.config.get_text_config(), NARROW if narrow else None):
        try:
            seen, x = _tree_pass(narrowed)
            alone = {place: _alone(model.net, path) for place, path in PATHS.items()}
            chain = _alone(model.net, PROMPT + TREE)
        except ModelError:
            raise
        except Exception as error:  # some families do not take our shapes, keywords or types
            raise _refusal(model.name, f"{type(error).__name__}: {error}") from error
    if not chain.isfinite().all():
        raise ModelError(
            f"{model.name}: its logits overflow in {str(model.dtype).removeprefix('torch.')}; its weights are finite\n"
            "hint: use dtype float32 or bfloat16, which do not overflow as early as float16"
        )
    error = float(torch.tensor([_gap(seen.logits[place], right) for place, right in alone.items()]).max())  # NaN wins
    allowed, ignored = _allowed(chain, alone[3])
    if not error <= allowed:
        raise _refusal(
            model.name, f"a node's logits are {error:.2g} off; reading the tree as a chain gives {ignored:.2g}"
        )
    if model.norm is not None and _gap(model.head(seen.hidden[x.want]), seen.logits) > allowed:
        model.norm = None  # an unknown step lies between norm and logits; `head` then raises


def _tree_pass(model: "HFModel") -> tuple[Any, ForwardInput]:
    """The passes drawn above, over a scratch cache."""
    scratch = _Scratch(model.cache_specs, model.device)
    scratch.segments = [Segment(0, 0, 3, 0, 3, 0, True, torch.ones(3, 3).tril().bool())]
    model.forward(_pass(model, PROMPT, [0] * 3, [0, 1, 2], [0, 1, 2], [-1, 0, 1]), cast(Cache, scratch))
    visible = torch.eye(4, dtype=torch.bool)
    for node, parent in enumerate(PARENTS):
        visible[node] |= visible[parent] if parent >= 0 else False
    scratch.segments = [
        Segment(0, 0, 4, 3, 4, 0, True, visible),
        Segment(1, 4, 7, 0, 3, 0, True, torch.ones(3, 3).tril().bool()),
    ]
    slots, entries = [0] * 4 + [1] * 3, [0, 1, 2, 3, 0, 1, 2]
    x = _pass(model, TREE + OTHER, slots, [*DEPTHS, 0, 1, 2], entries, [*PARENTS, -1, 0, 1])
    return model.forward(x, cast(Cache, scratch)), x


class _Scratch:
    """The part of a cache that two passes over known segments use."""

    def __init__(self, specs: tuple[CacheSpec, ...], device: torch.device) -> None:
        self.segments: list[Segment] = []
        self._stores = {s.name: torch.zeros(2, s.heads, 8, s.width, dtype=s.dtype, device=device) for s in specs}

    def stage(self, x: ForwardInput) -> list[Segment]:
        return self.segments

    def store(self, name: str) -> Tensor:
        return self._stores[name]


def _pass(model: "HFModel", letters: list[int], *columns: list[int]) -> ForwardInput:
    slots, positions, entries, parents = (torch.tensor(c, device=model.device) for c in columns)
    ids = _tokens(letters, model.net)[0]
    return ForwardInput(ids, slots, positions, entries, parents, torch.arange(len(letters), device=model.device))


def _tokens(letters: list[int], net: Any) -> Tensor:
    vocab_size = net.get_input_embeddings().weight.shape[0]
    return torch.tensor([[(11 + 7 * letter) % vocab_size for letter in letters]], device=net.device)


def _alone(net: Any, letters: list[int]) -> Tensor:
    """The last logits of a plain sequence, without a mask, cache or positions of ours."""
    return net(input_ids=_tokens(letters, net), use_cache=False).logits[0, -1]


def _allowed(chain: Tensor, right: Tensor) -> tuple[float, float]:
    """The allowed rounding error, and the error of a model that ignores the tree. In half precision the bound is a tenth
    of the latter, because rounding is coarse; in float32 it is a multiple of the rounding step."""
    ignored = _gap(chain, right)
    step = max(torch.finfo(chain.dtype).eps, torch.finfo(torch.float32).eps) * float(right.abs().max())
    return max(8 * step, min(1000 * step, ignored / 10)), ignored


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


@contextmanager
def _window(text: Any, window: int | None) -> Iterator[None]:
    """transformers with a narrow window, during the check."""
    old = getattr(text, "sliding_window", None)
    try:
        if window is not None:
            text.sliding_window = window
        yield
    finally:
        if window is not None:
            text.sliding_window = old


def _windows(text: Any, name: str) -> Windows:
    kinds = list(dict.fromkeys(getattr(text, "layer_types", None) or [""]))
    odd = set(kinds) - {"", "full_attention", "sliding_attention"}
    if "local" in (getattr(text, "attention_layers", None) or ()):
        odd.add("local")
    if odd:
        raise _refusal(name, f"it has layers of kind {', '.join(sorted(odd))}")
    window = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    return {kind: None if kind == "full_attention" else window for kind in kinds}


def _layers(decoder: nn.Module, count: int, name: str) -> nn.ModuleList:
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise _refusal(name, f"no list of its {count} layers was found")


def _cache_specs(cache: "DynamicCache", name: str) -> tuple[CacheSpec, ...]:
    """k and v of every layer; a layer that caches anything else cannot follow a tree."""
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    specs: list[CacheSpec] = []
    for i, layer in enumerate(cache.layers):
        if not isinstance(layer, DynamicLayer) or type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise _refusal(name, f"layer {i} keeps {type(layer).__name__} instead of keys and values")
        if layer.keys is None or layer.values is None:
            raise _refusal(name, f"layer {i} keeps no keys and values")
        for kind, entries in (("k", layer.keys), ("v", layer.values)):
            specs.append(CacheSpec(f"{kind}{i}", entries.shape[1], entries.shape[3], entries.dtype))
    if not specs:
        raise _refusal(name, "it keeps no keys and values")
    return tuple(specs)


@contextmanager
def _calls(decoder: nn.Module, layers: nn.ModuleList) -> Iterator[dict[nn.Module, tuple[Any, Any]]]:
    """Input and output of every module of the decoder outside its layers, and of the last layer."""
    seen: dict[nn.Module, tuple[Any, Any]] = {}

    def note(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        seen[module] = (args[0] if args else None, out if isinstance(out, Tensor) else out[0])

    inside = {module for layer in layers for module in layer.modules()}
    watched = [m for m in decoder.modules() if m not in inside] + [layers[-1]]
    hooks = [module.register_forward_hook(note) for module in watched]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _norm(calls: dict[nn.Module, tuple[Any, Any]], decoder: nn.Module, layers: nn.ModuleList) -> nn.Module | None:
    """The module that turns the last residual into what the head reads; None if no single one does."""
    last, final = calls[layers[-1]][1], calls[decoder][1]
    if _same(last, final):
        return nn.Identity()
    return next((m for m, (x, y) in calls.items() if m is not layers[-1] and _same(x, last) and _same(y, final)), None)


def _same(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and bool(torch.equal(a, b))


def _refusal(name: str, why: str) -> ModelError:
    return ModelError(
        f"{name} does not honour tree masks: {why.strip().splitlines()[0]}\n"
        "hint: only models whose layers all keep keys and values of every token can be run here"
    )
