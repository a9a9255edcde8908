"""Calibration: how far estimated chances are from what came true.

error = sum over bins of |estimated - accepted| / all nodes        0: of the nodes given 70 %, 70 % were accepted
"""

from dataclasses import dataclass, field

BINS = 10  # of chances, equally wide


@dataclass(slots=True)
class Calibration:
    """By bin: nodes, the sum of their chances, and how many were accepted."""

    nodes: list[int] = field(default_factory=lambda: [0] * BINS)
    chances: list[float] = field(default_factory=lambda: [0.0] * BINS)
    accepted: list[int] = field(default_factory=lambda: [0] * BINS)

    def learn(self, chance: float, accepted: bool) -> None:
        """One node, with the chance it was given before it was judged."""
        at = min(int(chance * BINS), BINS - 1)
        self.nodes[at] += 1
        self.chances[at] += chance
        self.accepted[at] += accepted

    @property
    def error(self) -> float | None:
        """Expected calibration error; None before any node was judged."""
        total = sum(self.nodes)
        if not total:
            return None
        return sum(abs(said - true) for said, true in zip(self.chances, self.accepted, strict=True)) / total

    def add(self, other: "Calibration") -> None:
        """The nodes of another one as well."""
        self.nodes = [a + b for a, b in zip(self.nodes, other.nodes, strict=True)]
        self.chances = [a + b for a, b in zip(self.chances, other.chances, strict=True)]
        self.accepted = [a + b for a, b in zip(self.accepted, other.accepted, strict=True)]
