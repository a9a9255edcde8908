"""Which rule a measured recipe follows, so that its text can be held against plain decoding's."""

from typing import Any

from draftwood import recipes


def following(name: str, temperature: float) -> dict[str, Any]:
    """Options of a recipe under which its samples are plain decoding's own; none where it offers no choice of rule."""
    return {"verifier": "match"} if temperature > 0 and "verifier" in recipes.options(name) else {}
