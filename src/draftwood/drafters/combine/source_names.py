"""Names of the sources that a drafter's tokens have by number: `Request.sources` and trees hold numbers alone."""

from draftwood.core.protocols import Drafter
from draftwood.drafters.combine.cascade import Cascade
from draftwood.drafters.combine.report import names
from draftwood.drafters.combine.route import Route
from draftwood.drafters.combine.several import Several
from draftwood.drafters.combine.vocab_trim import VocabTrim
from draftwood.drafters.phrases.lengthened import Lengthened
from draftwood.drafters.target_roots import TargetRoots

PHRASES = "phrases"


def source_names(drafter: Drafter) -> tuple[str, ...]:
    """By number. A drafter that is made of no others is its own only source; one that stands inside another is named as a
    whole."""
    if isinstance(drafter, VocabTrim | TargetRoots):
        return source_names(drafter.drafter)
    if isinstance(drafter, Several):
        return tuple(type(each).__name__ for each in drafter.drafters)
    if isinstance(drafter, Route):
        return names(drafter)
    if isinstance(drafter, Cascade):
        return tuple(type(each).__name__ for each in (*drafter.drafters, drafter.copier))
    if isinstance(drafter, Lengthened):
        return type(drafter.inner).__name__, PHRASES
    return (type(drafter).__name__,)
