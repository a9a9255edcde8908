"""DraftSampling: how a draft's distribution differs from what the request's options make of its logits."""

import math
from dataclasses import dataclass

from draftwood.errors import OptionError

LEAST, MOST = 0.01, 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSampling:
    """Applies to q alone, before anything is drawn from it: rules take the q that was really drawn from, so every value is
    exact, and only acceptance depends on it. Greedy sequences draw nothing and keep their draft as it is.

    `temperature`: times that of the request; below 1 a draft is sharper than the target's own sampling would make it.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not LEAST <= self.temperature <= MOST or math.isnan(self.temperature):
            raise OptionError(
                f"a draft's temperature cannot be {self.temperature:g} times the request's\n"
                f"hint: from {LEAST:g} to {MOST:g}; 1 is the request's own"
            )

    def __and__(self, other: "DraftSampling") -> "DraftSampling":
        """Both, one inside the other."""
        return DraftSampling(temperature=min(max(self.temperature * other.temperature, LEAST), MOST))


AS_ASKED = DraftSampling()
"""As the request's options say."""
