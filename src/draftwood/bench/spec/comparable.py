"""Which rule a measured recipe follows, and whether its text can be held against plain decoding's."""

from typing import Any, get_args, get_type_hints

from draftwood import recipes
from draftwood.core.recipe import Recipe
from draftwood.verifiers.match import Match


def following(name: str, temperature: float) -> dict[str, Any]:
    """Options of a recipe under which its samples are plain decoding's own; none where it offers no such rule, or where
    the name asks for another: verifier=rejection."""
    asked = any(word.startswith("verifier=") for word in recipes.parted(name)[1])
    offered = get_args(get_type_hints(recipes.load(name).build).get("verifier"))
    return {"verifier": "match"} if temperature > 0 and not asked and "match" in offered else {}


def not_compared(recipe: Recipe, temperature: float) -> str:
    """Why its texts need not be plain decoding's; empty where they must be. Whoever compares texts asks here."""
    rule = type(recipe.verifier).__name__
    if not recipe.lossless:
        return f"{rule} is LOSSY"
    if temperature == 0 or isinstance(recipe.verifier, Match):
        return ""
    return f"{rule} draws for itself, so the texts differ and their distribution is the same"
