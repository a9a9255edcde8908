"""How drafted tokens were picked and how they hang together, and which rule is exact for which of these.

A rule is exact only for tokens that were picked in a certain way (`Draw`) and form a certain structure (`Shape`). Any
other pairing would bias the output by a few percent, which no reader of the text would notice; so it is refused.
"""

from dataclasses import dataclass
from enum import Enum

from draftwood.errors import OptionError


class Draw(Enum):
    """How nodes with copies > 0 were picked."""

    GIVEN = "given"  # none drawn: the tokens come without a distribution
    IID = "iid"  # independent draws, equal ones merged and counted in `copies`
    DISTINCT = "distinct"  # without replacement, siblings in draw order

    @property
    def ranked(self) -> bool:
        """Whether siblings are different tokens. Greedy sequences then need a distribution with more than the best one."""
        return self is not Draw.IID


def need_draw(part: str, draw: object) -> None:
    """OptionError, in the name of the part, if this is none."""
    if not isinstance(draw, Draw):
        raise OptionError(f"{part}: draw cannot be {draw!r}\nhint: {', '.join(map(str, Draw))}")


class Shape(Enum):
    """How the nodes of one sequence hang together. It follows from the policy, not from what was drawn."""

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

# By name, the rule that accepts most first: where several are exact, that one is worth trying.
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
