"""The slots of a round as host numbers."""

from draftwood.core.round import Round


def slots_of(rnd: Round) -> list[int]:
    """In the order of its sequences: what controllers keep their states by."""
    return rnd.slots.tolist()
