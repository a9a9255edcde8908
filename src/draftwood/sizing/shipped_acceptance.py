"""Measured acceptance of the drafters that ship, as data beside their weights: `*.RECIPE.profile.json`.

Each file names the command that made it. A drafter without one starts from that of its kind for another target: it is only
where a controller begins, what it sees in its own rounds corrects it.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from draftwood import weights as shipped
from draftwood.controllers.estimates.acceptance import Acceptance
from draftwood.core.protocols import Runner
from draftwood.drafters.nets.files.find import fingerprint
from draftwood.errors import WeightsError


def load_acceptance(recipe: str, target: Runner, drawn: bool = False) -> Acceptance:
    """The profile of this recipe's drafter, if possible for this target. `drawn`: sampled requests draft chains of draws."""
    found = [note for note in _profiles() if note["recipe"] == recipe]
    mine = [note for note in found if note["target"] == fingerprint(target)]
    if not found:
        raise WeightsError(
            f"no acceptance profile of {recipe!r} ships\nhint: python -m draftwood.bench.study.rules.tree_sizes"
        )
    return Acceptance.of((mine or found)[0], drawn)


@cache
def _profiles() -> tuple[dict[str, Any], ...]:
    files = sorted(Path(shipped.__file__).parent.glob("*.profile.json"))
    return tuple(json.loads(path.read_text("utf-8")) for path in files)
