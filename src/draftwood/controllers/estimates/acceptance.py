"""How many drafted tokens a tree of some depth and size is expected to yield: measured tables, shifted by what is seen live.

A table holds the mean number of accepted tokens of chains by depth and of trees by depth and nodes, at one temperature. The
mean E of a size stands for one chance a per level, E = a + a^2 + .. + a^depth. A text on which the draft does better or
worse than the table moves the log-odds of every a by the same shift.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np

from draftwood.errors import WeightsError

Size = tuple[int, int]
"""(depth, drafted nodes); as many nodes as levels: a chain."""

DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8)
NODES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 60)


@dataclass(frozen=True, slots=True)
class Table:
    """Mean accepted tokens at one temperature."""

    chains: tuple[float, ...]  # depth 1, 2, ..
    trees: tuple[tuple[float, ...], ...]  # [depth][NODES]

    def accepted(self, size: Size) -> float:
        """Between measured sizes by interpolation; beyond them as the largest."""
        depth, nodes = size
        if nodes <= depth:
            return float(np.interp(nodes, [0, *range(1, len(self.chains) + 1)], [0.0, *self.chains]))
        level = self.trees[min(depth, len(self.trees)) - 1]
        return float(np.interp(nodes, [1, *NODES], [self.chains[0], *level]))

    @staticmethod
    def of(raw: Mapping[str, Any]) -> "Table":
        return Table(tuple(map(float, raw["chains"])), tuple(tuple(map(float, level)) for level in raw["trees"]))

    @staticmethod
    def of_chains(chains: Sequence[float]) -> "Table":
        """Where nothing but a chain is drafted, more nodes than levels bring nothing."""
        return Table.of({"chains": chains, "trees": [[each] * len(NODES) for each in chains]})


@dataclass(frozen=True, slots=True)
class Acceptance:
    """`greedy` was measured at temperature 0, `sampled` at 1; what lies between is interpolated."""

    greedy: Table
    sampled: Table

    @staticmethod
    def of(raw: Mapping[str, Any], drawn: bool = False) -> "Acceptance":
        """From the JSON of a profile. `drawn`: above temperature 0 drafts are chains of draws, not given tokens, of which no
        fewer are accepted."""
        try:
            greedy, sampled = (Table.of(raw["temperatures"][key]) for key in ("0", "1"))
            chains = raw["drawn"]["chains"] if "drawn" in raw else raw["temperatures"]["1"]["chains"]
            return Acceptance(greedy, Table.of_chains(chains) if drawn else sampled)
        except (KeyError, TypeError, ValueError) as error:
            raise WeightsError(f"an acceptance profile is not whole: {error!r}") from None


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """The expected tokens of some sizes, all at once."""

    depth: np.ndarray  # [S]
    greedy: np.ndarray  # [S] chance per level
    sampled: np.ndarray  # [S]

    @staticmethod
    def of(acceptance: Acceptance, sizes: Sequence[Size]) -> "Outlook":
        depth = np.array([d for d, _ in sizes])
        chances = (
            _chance(np.array([table.accepted(size) for size in sizes]), depth)
            for table in (acceptance.greedy, acceptance.sampled)
        )
        return Outlook(depth, *chances)

    def accepted(self, temperature: float, shift: float) -> np.ndarray:
        """[S]"""
        return self._accepted(self.greedy, self.sampled, self.depth, temperature, np.exp(-shift))

    def accepted_by(self, size: int, temperature: float, shift: float, levels: int) -> float:
        """The same for one size, by its place, of which only so many levels are judged."""
        chances = float(self.greedy[size]), float(self.sampled[size])
        return self._accepted(*chances, levels, temperature, exp(-shift))

    @staticmethod
    def _accepted(greedy: Any, sampled: Any, depth: Any, temperature: float, odds: float) -> Any:
        share = min(max(temperature, 0.0), 1.0)
        chance = (1 - share) * greedy + share * sampled
        return _sum(1 / (1 + (1 / chance - 1) * odds), depth)


def _sum(chance: Any, depth: Any) -> Any:
    """a + a^2 + .. + a^depth, for a below 1."""
    return chance * (1 - chance**depth) / (1 - chance)


def _chance(accepted: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """The a whose sum is `accepted`, by bisection."""
    low, high = np.full(len(depth), 1e-4), np.full(len(depth), 1 - 1e-4)
    for _ in range(40):
        middle = (low + high) / 2
        under = _sum(middle, depth) < accepted
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    return (low + high) / 2
