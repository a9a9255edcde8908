"""What all formats share: the options of a conversion, notes for the user, and checks against the target."""

from dataclasses import dataclass, field, replace
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.drafters.nets.files.store import Head
from draftwood.errors import OptionError, WeightsError
from draftwood.train.formats.files import Found

LayerIds = Literal["auto", "vllm", "sglang"]
EMBEDDING = "embed_tokens.weight"
CLOSE = 1e-3  # largest difference between two copies of one embedding; float16 rounds by about as much


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """The model that a head drafts for: its config, embedding and LM head."""

    name: str
    config: ModelConfig
    fingerprint: str
    embedding: Float[Tensor, "V H"]
    lm_head: Float[Tensor, "V H"]


@dataclass(slots=True, eq=False)
class Conversion:
    """One conversion. `floats` None: the format's usual precision. `notes` collects messages for the user."""

    target: Target | None = None
    layer_ids: LayerIds = "auto"
    floats: int | None = None
    notes: list[str] = field(default_factory=list[str])

    @property
    def fingerprint(self) -> str:
        return "" if self.target is None else self.target.fingerprint

    def note(self, text: str) -> None:
        self.notes.append(text)

    def need_target(self, why: str) -> Target:
        if self.target is None:
            raise OptionError(f"{why}\nhint: name the model that the head drafts for: --target smollm2")
        return self.target


def open_target(name: str) -> Target:
    """Config, embedding and LM head of a model, in float32."""
    from draftwood.models.loading.load import fingerprint, load_weights
    from draftwood.models.loading.tensor_names import EMBEDDING, HEAD

    if name.startswith("hf:"):
        raise OptionError(f"{name}: --target is read from its files\nhint: leave out hf:")
    config, tensors, _ = load_weights(name)
    embedding = tensors[EMBEDDING].float()
    lm_head = embedding if config.tie_embeddings else tensors[HEAD].float()
    return Target(name, config, fingerprint(config, tensors), embedding, lm_head)


def check_target(head: Head, target: Target | None, where: str) -> None:
    """WeightsError if the head does not fit this model."""
    if target is None:
        return
    c, t, why = head.config, target.config, ""
    if c.target_hidden != t.hidden_size:
        why = f"reads features {c.target_hidden} wide, those of {target.name} are {t.hidden_size}"
    elif c.layer.vocab_size != t.vocab_size:
        why = f"has a vocabulary of {c.layer.vocab_size} tokens, {target.name} one of {t.vocab_size}"
    elif far := [tap for tap in c.taps if tap > t.num_layers]:
        why = (
            f"reads layers {far}, {target.name} has {t.num_layers}\nhint: choose the file's convention with --layer-ids"
        )
    elif head.target and head.target != target.fingerprint:
        why = f"made for the target with fingerprint {head.target}, {target.name} has {target.fingerprint}"
    if why:
        raise WeightsError(f"{where}: {why}")


def compare_embedding(found: Found, conversion: Conversion) -> None:
    """Notes whether the file's copy of the embedding equals the target's, which the draftwood format uses."""
    table, target = found.tensors.get(EMBEDDING), conversion.target
    if table is None:
        conversion.note("embedding: not in the file; the target's is used")
    elif target is None:
        conversion.note("embedding: the target's is used; --target compares the file's copy with it")
    elif table.shape != target.embedding.shape:
        own = list(target.embedding.shape)
        raise WeightsError(f"{found.where}: {EMBEDDING} is {list(table.shape)}, that of {target.name} {own}")
    elif (difference := float((table - target.embedding).abs().max())) <= CLOSE:
        conversion.note(f"embedding: the same as the target's (largest difference {difference:.1e})")
    else:
        conversion.note(
            f"warning: embedding: the file's copy differs from that of {target.name} by up to {difference:.3g}; "
            "the target's is used. Is this the right target?"
        )


def same_width(head: Head) -> None:
    """WeightsError if draft and target differ in width: other readers expect an embedding of the draft's width."""
    if head.config.layer.hidden_size != head.config.target_hidden:
        raise WeightsError(
            f"the draft is {head.config.layer.hidden_size} wide and its target {head.config.target_hidden}: "
            "this format needs an embedding of the draft's width, draftwood uses the target's"
        )


def config_without_layer(width: int, vocab_size: int, target: Target | None) -> ModelConfig:
    """The config of a head without a decoder layer: its sizes, and the target's other fields if it is known."""
    if target is not None:
        return replace(target.config, num_layers=1, hidden_size=width, vocab_size=vocab_size)
    return ModelConfig("llama", vocab_size, width, 1, num_heads=1, num_kv_heads=1, head_dim=2, intermediate_size=1)
