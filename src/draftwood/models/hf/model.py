"""Any transformers causal LM behind the Model protocol: load("hf:org/name"), load("hf:folder").

Trees run with an explicit mask, explicit positions and our own KV cache. Before its first token a model is checked on a
small tree (model_check.py) and refused if it ignores the mask. Code from a model's repository is never run.
"""

import hashlib
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.config import ModelConfig
from draftwood.core.forward import ALL, FINAL, CacheSpec, ForwardInput, ForwardOutput, LayerPlan, logit_places
from draftwood.core.model_info import ModelInfo
from draftwood.core.protocols import Cache
from draftwood.errors import ModelError, WeightsError
from draftwood.models.hf import model_check
from draftwood.models.hf.cache import Pack, Windows, packs, transformers_cache, tree_mask
from draftwood.models.loading.checkpoint import check_finite, read_config
from draftwood.models.loading.load import Loaded, fingerprint, last_rows
from draftwood.models.loading.resolve import resolve
from draftwood.models.loading.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class HFConfig:
    """The config of a model whose family has no decoder here: what the engine needs, and nothing else."""

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_positions: int
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()


class HFModel:
    """A transformers model. All of its layers run; its runner refuses a LayerPlan that leaves some out."""

    def __init__(
        self,
        net: Any,
        name: str,
        *,
        windows: Windows,
        cache_specs: tuple[CacheSpec, ...],
        vocab_size: int,
        layers: nn.ModuleList,
        norm: nn.Module | None,
    ) -> None:
        self.net, self.name, self.windows = net, name, windows
        self.cache_specs, self.vocab_size = cache_specs, vocab_size
        self.layers, self.norm = layers, norm
        self._lock = threading.Lock()  # hooks belong to the module, and two engines may share it
        self._keeps = "logits_to_keep" in inspect.signature(net.forward).parameters

    @classmethod
    def wrap(cls, net: Any, name: str = "") -> "HFModel":
        """Find out what a module caches per token, then check it on a tree. ModelError if it does not follow the tree."""
        net = net.eval().requires_grad_(False)
        name = name or type(net).__name__
        check_finite(net.named_parameters(), name)  # before the check below, whose error would blame the attention mask
        model = cls(net, name, **model_check.inspect(net, name))
        model_check.check(model)
        return model

    @property
    def info(self) -> ModelInfo:
        text = self.net.config.get_text_config()
        return ModelInfo(
            vocab_size=self.vocab_size,
            num_layers=self.num_layers,
            hidden_size=text.hidden_size,
            max_positions=getattr(text, "max_position_embeddings", None) or 2048,
            device=self.device,
            dtype=self.dtype,
            backend=f"transformers {self.dtype}".replace("torch.", ""),
            layer_ranges=False,
            name=self.name,
        )

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def dtype(self) -> torch.dtype:
        return self.net.dtype

    @property
    def device(self) -> torch.device:
        return self.net.device

    @property
    def _linear(self) -> nn.Module:
        return self.net.get_output_embeddings()

    @torch.inference_mode()
    def forward(
        self, x: ForwardInput, cache: Cache, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL
    ) -> ForwardOutput:
        """One pass over T tokens. Features of padding tokens are zeros."""
        at = logit_places(x.want, x.size)
        logits = torch.zeros(len(x.want), self.vocab_size, dtype=self.dtype, device=self.device)
        features: dict[int, Tensor] = {}
        for pack in packs(cache.stage(x), x):
            with self._lock, self._tapped(taps | {self.num_layers}) as tapped:
                self._run(pack, cache, at, logits)
            for tap, padded in tapped.items():
                if tap not in features:
                    features[tap] = padded.new_zeros(x.size, padded.shape[-1])
                pack.collect(padded, features[tap])
        nothing = logits.new_zeros(x.size, self.net.config.get_text_config().hidden_size)
        hidden = features.get(self.num_layers, nothing)
        asked = {tap: features.get(tap, nothing) for tap in taps}
        return ForwardOutput(logits=logits, hidden=hidden, logits_index=at, features=asked, tokens=x)

    def _run(self, pack: Pack, cache: Cache, at: Int[Tensor, "T"], logits: Float[Tensor, "U V"]) -> None:
        """One call of transformers; writes the wanted logits."""
        x = pack.x
        wanted = pack.spread(at, fill=-1)  # [S, width]
        columns = (wanted >= 0).any(0).nonzero()[:, 0]
        if not len(columns) or not self._keeps:
            # At least one: transformers reads 0 as all.
            columns = torch.arange(self._keeps or pack.width, device=at.device)
        given = {"input_ids": pack.spread(x.ids)} if x.hidden is None else {"inputs_embeds": pack.spread(x.hidden)}
        if self._keeps:
            given["logits_to_keep"] = columns
        out = self.net(
            **given,
            attention_mask=tree_mask(pack, self.dtype, self.windows),
            position_ids=pack.spread(x.positions),
            past_key_values=transformers_cache(pack, cache, len(self.cache_specs) // 2),
            use_cache=True,
        )
        wanted = wanted[:, columns]
        logits[wanted[wanted >= 0]] = out.logits[wanted >= 0]

    @contextmanager
    def _tapped(self, taps: frozenset[int]) -> Iterator[dict[int, Tensor]]:
        """Residuals by tap. Hooks, because the last hidden state that transformers returns is already normed."""
        found: dict[int, Tensor] = {}

        def keep(tap: int) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, out: Any) -> None:
                found[tap] = out if isinstance(out, Tensor) else out[0]

            return hook

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found[0] = args[0] if args else kwargs["hidden_states"]

        hooks = [self.layers[tap - 1].register_forward_hook(keep(tap)) for tap in taps if tap > 0]
        if 0 in taps:
            hooks.append(self.layers[0].register_forward_pre_hook(enter, with_kwargs=True))
        if FINAL in taps:
            hooks.append(self.net.get_decoder().register_forward_hook(keep(FINAL)))
        try:
            yield found
        finally:
            for hook in hooks:
                hook.remove()

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        return self.net.get_input_embeddings()(ids)

    def head(
        self, hidden: Float[Tensor, "*S H"], *, ids: Int[Tensor, "W"] | None = None, norm: bool = True
    ) -> Float[Tensor, "*S W"]:
        """Logits of all tokens, or only those of the LM-head rows `ids`."""
        if self.norm is None:
            raise ModelError(
                f"{self.name}: its logits are not a final norm and a linear head alone, so LM-head rows are not available"
            )
        hidden = self.norm(hidden) if norm else hidden
        linear = self._linear
        if ids is None or not isinstance(linear, nn.Linear):
            logits = linear(hidden)
            return self._scale_logits(logits if ids is None else logits[..., ids])
        return self._scale_logits(
            F.linear(hidden, linear.weight[ids], None if linear.bias is None else linear.bias[ids])
        )

    def _scale_logits(self, logits: Tensor) -> Tensor:
        """The scaling and capping that some families apply after the head."""
        c = self.net.config.get_text_config()
        logits = logits * (getattr(c, "logit_scale", None) or 1.0) / (getattr(c, "logits_scaling", None) or 1.0)
        cap = getattr(c, "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.tanh(logits / cap)


def load(name: str, dtype: torch.dtype, device: torch.device | str) -> Loaded:
    """Fetch, read and check a model. DownloadError, UnknownNameError or ModelError says what is wrong."""
    folder = resolve(name).folder
    net = _read(folder, name, dtype).to(device)
    tokenizer = Tokenizer.from_folder(folder)
    model = HFModel.wrap(net, f"hf:{name}")
    config = _config(folder, model)
    config = replace(config, eos_token_ids=tuple(dict.fromkeys(config.eos_token_ids + tokenizer.eos_token_ids)))
    tokenizer.check(cast(ModelConfig, config))
    return Loaded(f"hf:{name}", cast(ModelConfig, config), model, tokenizer, _fingerprint(config, net))


def _read(folder: Path, name: str, dtype: torch.dtype) -> Any:
    """The module, every weight of it read from the files: transformers would fill a missing one with noise."""
    from transformers import AutoModelForCausalLM

    try:
        read: Any = AutoModelForCausalLM.from_pretrained  # its type stubs lack output_loading_info
        net, info = read(
            folder,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises many types for broken configs and unknown architectures
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        raise ModelError(
            f"hf:{name}: transformers cannot load it: {reason}\n"
            "hint: it must be a causal model of the installed transformers, saved as safetensors; "
            "code from a model's repository is never run"
        ) from error
    wrong = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if wrong:
        raise WeightsError(f"hf:{name}: {len(wrong)} tensors are missing or of a wrong shape: {', '.join(wrong[:5])}")
    if net.config._attn_implementation not in ("sdpa", "eager"):  # others take no explicit mask
        net.set_attn_implementation("eager")
    return net


def _config(folder: Path, model: HFModel) -> ModelConfig | HFConfig:
    """A ModelConfig if our decoder knows the family, else an HFConfig."""
    try:
        return read_config(folder)
    except ModelError:
        text, generation = model.net.config.get_text_config(), model.net.generation_config
        eos = [t for c in (text, generation) for t in _tokens(getattr(c, "eos_token_id", None))]
        return HFConfig(
            family=text.model_type,
            vocab_size=model.vocab_size,
            hidden_size=text.hidden_size,
            num_layers=model.num_layers,
            max_positions=model.info.max_positions,
            bos_token_id=next(iter(_tokens(getattr(text, "bos_token_id", None))), None),
            eos_token_ids=tuple(dict.fromkeys(eos)),
        )


def _tokens(value: Any) -> list[int]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def _fingerprint(config: ModelConfig | HFConfig, net: nn.Module) -> str:
    """For a family that our decoder knows, equal to the fingerprint without hf:, so that heads fit both."""
    weights = dict(net.named_parameters())
    if isinstance(config, ModelConfig):
        return fingerprint(config, weights)
    digest = hashlib.sha256(repr([(name, tuple(w.shape)) for name, w in sorted(weights.items())]).encode())
    names = sorted(weights)
    for name in (names[0], names[len(names) // 2], names[-1]):
        digest.update(last_rows(weights[name]))
    return digest.hexdigest()[:16]
