"""HeadConfig: the shape of a trained drafter, as its file says it."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from draftwood.core.config import ModelConfig, RopeScaling
from draftwood.errors import WeightsError

KINDS = (
    "eagle",
    "eagle3",
    "medusa",
    "hydra",
    "mlp",
    "language",
    "decision",
    "length",
    "acceptance",
    "exit",
    "exit_layer",
    "exits",
    "nested",
    "probes",
    "griffin",
    "deep_eagle",
    "deep_medusa",
    "block",
    "semi",
)

_RENAMED = {"bos_token": "bos_token_id", "eos_tokens": "eos_token_ids"}  # as files of version 0.1 spell them


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """`layer` holds the draft's own sizes; its vocab_size is the target's, `rows` the draft's."""

    kind: str
    layer: ModelConfig
    target_hidden: int
    taps: tuple[int, ...]  # features it reads; core.forward.FINAL is -1
    rows: int  # columns of its distribution
    # Heads of medusa and hydra, steps of the MLP speculator, probes of a branch, masked positions of a block, tokens of the
    # longest predicted draft.
    stages: int = 1
    depth: int = 1  # blocks in each head, layers of deep_eagle
    bias: bool = False  # of eagle's first product
    norm_before_residual: bool = False  # eagle3: the residual is the normed feature
    norm_output: bool = False  # eagle3.1: the normed output is fed forward
    norm_features: bool = False  # eagle3.1 fc_norm: one norm per fused layer
    norm_fused: bool = False  # eagle3.1 norm_before_fc: one norm over all of them
    scale_input: bool = False  # MLP speculator
    tied: bool = False  # MLP speculator: one norm, one inner projection for all steps; acceptance: one block
    target_rows: bool = False  # eagle3: logits from the target's own rows, so any token can be guessed
    own_tables: bool = False  # medusa, MLP speculator: tables of its own instead of the target's
    exits: tuple[int, ...] = ()  # nested: after how many layers a token may leave, the last after all of them

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise WeightsError(f"a head of kind {self.kind!r} is unknown\nhint: {', '.join(KINDS)}")
        for name in ("target_hidden", "rows", "stages", "depth"):
            if getattr(self, name) <= 0:
                raise WeightsError(f"head config: {name} must be positive, got {getattr(self, name)}")
        if self.kind == "exits" and len(self.taps) != 2:
            raise WeightsError(f"head config: a head of kind {self.kind!r} has two taps, got {list(self.taps)}")
        if self.own_tables and self.kind not in ("medusa", "mlp"):
            raise WeightsError(f"head config: a head of kind {self.kind!r} has no tables of its own")
        if self.kind == "nested":
            layers = self.layer.num_layers
            if (
                not self.exits
                or list(self.exits) != sorted({*self.exits})
                or not 1 <= self.exits[0] <= layers == self.exits[-1]
            ):
                raise WeightsError(
                    f"head config: exits cannot be {list(self.exits)}\nhint: ascending from 1 on, the last one {layers}"
                )
        elif self.exits:
            raise WeightsError(f"head config: a head of kind {self.kind!r} has no exits")

    def to_json(self) -> dict[str, Any]:
        """Without `own_tables` and `exits` where there are none, so that versions that do not know them read the file."""
        raw = asdict(self)
        for name in ("own_tables", "exits"):
            if not raw[name]:
                del raw[name]
        return raw

    @staticmethod
    def from_json(raw: dict[str, Any]) -> "HeadConfig":
        """WeightsError names what is missing or unknown."""
        known = {f.name for f in fields(HeadConfig)}
        unknown = sorted(set(raw) - known)
        if unknown:
            raise WeightsError(f"head config has unknown fields {unknown}\nhint: it was written by a newer version")
        try:
            stored: dict[str, Any] = dict(raw["layer"])
            layer = {_RENAMED.get(name, name): value for name, value in stored.items()}
            scaling = layer.get("rope_scaling")
            layer["rope_scaling"] = None if scaling is None else RopeScaling(**scaling)
            for name in ("eos_token_ids", "full_layers"):
                layer[name] = tuple(layer.get(name, ()))
            own = {
                **raw,
                "layer": ModelConfig(**layer),
                "taps": tuple(raw["taps"]),
                "exits": tuple(raw.get("exits", ())),
            }
            return HeadConfig(**own)
        except (KeyError, TypeError) as error:
            raise WeightsError(f"head config is not whole: {error}") from None
