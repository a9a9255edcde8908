"""ByLevel: what a policy answers that grows one level per draft pass and draws from whole distributions."""

from draftwood.core.limit import Limit


class ByLevel:
    """A base for such policies; `BestFirst` and `MostValuableFirst` give one other answer each."""

    __slots__ = ()

    def passes(self, limit: Limit) -> int | None:
        return None

    def reads(self, limit: Limit) -> int | None:
        return None

    def max_frontier(self, limit: Limit) -> int | None:
        return None
