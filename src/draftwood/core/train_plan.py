"""TrainPlan: what a recipe asks of the trainer. Stages in order; each learns, searches or builds.

    Learn    gradients: the loop shows batches as the target sees them, the learner yields losses
    Search   no gradients: try settings against the real engine and keep the best
    Build    no loop at all: count, index, cluster

One loop serves every learner because it asks only for losses: a pair of adversaries yields losses of two groups, an
unrolled drafter yields the sum of its steps, an on-policy stage makes its own text inside `losses`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from draftwood.core.forward import Needs
from draftwood.errors import OptionError


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A batch of texts as the target sees them, teacher-forced: index t has read tokens 0..t.

    `text`, `answer` and `live` stay on the host, which decides what counts and so does not wait for the device.
    """

    ids: Int[Tensor, "B T"]
    text: Int[Tensor, "B T"]  # the ids
    answer: Bool[Tensor, "B T"]  # tokens the target wrote; padding and prompts are False
    live: Bool[Tensor, "B T"]  # False is padding
    features: dict[int, Float[Tensor, "B T H"]]  # by tap
    embed: Callable[[Tensor], Tensor]  # the target's embedding, frozen
    # Rows of the target's LM head, after the final norm.
    rows: Callable[[Int[Tensor, "W"] | None], Float[Tensor, "W H"]]
    seed: int = 0  # of this step's noise: whatever a learner draws must come from it, or a resumed run would differ
    prompt_share: float = 0.0  # of the positions outside answers that teach too

    def generator(self, stream: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
        """Noise of this step alone. Draws of different streams have nothing to do with each other."""
        return torch.Generator(device=device).manual_seed(self.seed ^ stream << 56)


class Learner(Protocol):
    """What is trained, and by which losses. Progress runs from 0 to 1 over its stage."""

    @property
    def needs(self) -> Needs: ...
    def groups(self) -> Mapping[str, list[nn.Parameter]]:
        """Parameters that step together, by name."""
        ...

    def losses(self, shown: Shown, progress: float) -> Iterator[tuple[str, Float[Tensor, ""], dict[str, Tensor]]]:
        """(group, loss, figures to show). Each is backpropagated as it comes; every group steps once a batch."""
        ...


@dataclass(frozen=True, slots=True)
class Rate:
    """A warm-up and a cosine to nothing, for AdamW or, `muon`, for Muon on matrices and AdamW on the rest."""

    peak: float = 1e-3
    muon: bool = False
    warmup: float = 0.02  # share of the stage
    floor: float = 0.0  # share of the peak at the end
    betas: tuple[float, float] = (0.9, 0.95)
    decay: float = 0.0
    clip: float = 0.5  # norm of a group's gradient

    def __post_init__(self) -> None:
        if not 0 < self.peak < inf:
            raise OptionError(f"rate cannot be {self.peak}\nhint: more than 0, such as 1e-3")


@dataclass(frozen=True, slots=True, eq=False)
class Learn:
    """Gradient steps. `share` is the part of the plan's steps that this stage gets; `rates` are those of groups that have
    one of their own."""

    learner: Learner
    rate: Rate = Rate()
    share: float = 1.0
    name: str = "learn"
    rates: Mapping[str, Rate] = field(default_factory=dict[str, Rate])

    def rate_of(self, group: str) -> Rate:
        return self.rates.get(group, self.rate)


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Settings tried against a measure; `run` returns what it kept, for the record."""

    run: Callable[[], dict[str, Any]]
    name: str = "search"


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """What a Build stage made: files by name, and which options of the recipe take which of them."""

    files: Mapping[str, bytes]
    options: Mapping[str, str] = field(default_factory=dict[str, str])  # option -> name of a file
    record: Mapping[str, Any] = field(default_factory=dict[str, Any])  # figures, for people


@dataclass(frozen=True, slots=True, eq=False)
class Build:
    """Something made in one go; `run` gets the training texts. Whoever runs it writes the files, whole or not at all."""

    run: Callable[[Any], Made]
    name: str = "build"


Stage = Learn | Search | Build


@dataclass(frozen=True, slots=True, eq=False)
class TrainPlan:
    """Stages, and the module whose weights they change. `beside`: a module that only trains the other, so that checkpoints
    hold it and the weights that recipes load do not."""

    stages: tuple[Stage, ...]
    net: nn.Module | None = None
    config: Any = None  # drafters.nets.files.config.HeadConfig of the net
    notes: dict[str, Any] = field(default_factory=dict[str, Any])
    beside: nn.Module | None = None

    @property
    def learns(self) -> tuple[Learn, ...]:
        return tuple(stage for stage in self.stages if isinstance(stage, Learn))
