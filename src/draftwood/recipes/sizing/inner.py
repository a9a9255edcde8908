"""What drafts where a recipe leaves it open, `inner=auto`: a drafter that ships for the target, else its first layers."""

from draftwood.core.protocols import Model
from draftwood.drafters.nets.find import command, ships

AUTO = "auto"
TRAINED = {
    "eagle3": "eagle3",
    "fast_draft": "language",
}  # recipes whose drafters can draw, and the kind of their weights


def candidates(target: Model) -> list[tuple[str, str]]:
    """Recipes that can lend their drafter, the most promising one first, each with a note for the banner."""
    trained = [name for name, kind in TRAINED.items() if ships(kind, target)]
    layers = max(1, target.num_layers // 3)
    first = f"speculative_sampling:draft=first:{layers}"
    weak = f"the target's first {layers} of {target.num_layers} layers draft: no trained drafter ships for this target"
    return [
        *((name, f"{name} drafts: its weights ship for this target") for name in trained),
        (first, f"{weak}; `{command('eagle3', target)}` makes one"),
    ]
