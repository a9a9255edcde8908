"""What a reader and a writer of heads are told, and where they say what they decided."""

from dataclasses import dataclass, field
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.drafters.nets.config import HeadConfig
from draftwood.drafters.nets.store import Head
from draftwood.errors import OptionError, WeightsError

LayerIds = Literal["auto", "vllm", "sglang"]


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """The model that a head drafts for: its shape and its two tables."""

    name: str
    config: ModelConfig
    fingerprint: str
    embedding: Float[Tensor, "V H"]
    rows: Float[Tensor, "V H"]  # of its head


@dataclass(slots=True, eq=False)
class Exchange:
    """One conversion. `floats` None: what the format is used to."""

    target: Target | None = None
    layer_ids: LayerIds = "auto"
    floats: int | None = None
    said: list[str] = field(default_factory=list[str])

    def say(self, text: str) -> None:
        self.said.append(text)

    def need_target(self, why: str) -> Target:
        if self.target is None:
            raise OptionError(f"{why}\nhint: name the model that the head drafts for: --target smollm2")
        return self.target


def open_target(name: str) -> Target:
    """Config and tables of a model, in float32; nothing else of it is read."""
    from draftwood.models.loading.load import fingerprint, load_weights
    from draftwood.models.loading.tensor_names import EMBEDDING, HEAD

    if name.startswith("hf:"):
        raise OptionError(f"{name}: a target is read from its files\nhint: leave out hf:")
    config, tensors, _ = load_weights(name)
    embedding = tensors[EMBEDDING].float()
    rows = embedding if config.tie_embeddings else tensors[HEAD].float()
    return Target(name, config, fingerprint(config, tensors), embedding, rows)


def check_target(head: Head, target: Target | None, where: str) -> None:
    """WeightsError if the head cannot have been made for this model."""
    if target is None:
        return
    c: HeadConfig = head.config
    if c.target_hidden != target.config.hidden_size:
        raise WeightsError(
            f"{where}: reads features {c.target_hidden} wide, those of {target.name} are {target.config.hidden_size}"
        )
    if c.layer.vocab_size != target.config.vocab_size:
        raise WeightsError(
            f"{where}: speaks {c.layer.vocab_size} tokens, {target.name} speaks {target.config.vocab_size}"
        )
    far = [tap for tap in c.taps if tap > target.config.num_layers]
    if far:
        raise WeightsError(
            f"{where}: reads layers {far}, {target.name} has {target.config.num_layers}\n"
            "hint: --layer-ids says whose convention the file follows"
        )
    if head.target and head.target != target.fingerprint:
        raise WeightsError(
            f"{where}: made for the target with fingerprint {head.target}, {target.name} has {target.fingerprint}"
        )
