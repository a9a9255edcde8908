"""Which rule is exact on which draft: the one table, for the rules themselves and for whoever puts parts together.

A rule knows how tokens must have been picked (`Draw`) and how they must hang together (`Shape`). Any other pairing would
bias the output by a few percent, which no reader of the text would notice; so it cannot be built.
"""

from dataclasses import dataclass
from enum import Enum

from draftwood.core.proposal import Draw


class Shape(Enum):
    """How the nodes of one row hang together. It follows from the policy, not from what was drawn."""

    CHAIN = "a chain"
    PATHS = "independent paths"  # all of one length, merged where they begin alike, counted in `copies`
    TREE = "a tree"


@dataclass(frozen=True, slots=True)
class Legal:
    """Draws and shapes that one rule is exact for."""

    draws: frozenset[Draw]
    shapes: frozenset[Shape] = frozenset(Shape)

    def __contains__(self, made: tuple[Draw, Shape]) -> bool:
        return made[0] in self.draws and made[1] in self.shapes


_DRAWN = frozenset({Draw.IID, Draw.DISTINCT})

# By name, the rule that keeps most first: where several are exact, that one is worth trying.
RULES = {
    "Traversal": Legal(_DRAWN),
    "PathBlock": Legal(frozenset({Draw.IID}), frozenset({Shape.CHAIN, Shape.PATHS})),
    "Block": Legal(_DRAWN, frozenset({Shape.CHAIN})),
    "Rejection": Legal(_DRAWN),
    "Transport": Legal(frozenset({Draw.IID})),
    "Selection": Legal(frozenset({Draw.IID})),
    "Match": Legal(frozenset(Draw)),
}


def legal_rules(draw: Draw, shape: Shape) -> list[str]:
    """Names of the rules that are exact for such drafts; never empty."""
    return [name for name, legal in RULES.items() if (draw, shape) in legal]
