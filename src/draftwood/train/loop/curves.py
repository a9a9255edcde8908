"""One picture of a run: losses and acceptance over tokens seen."""

from pathlib import Path
from typing import Any

from draftwood.train.loop import log


def draw(folder: Path) -> Path | None:
    """curves.svg from log.jsonl; None where matplotlib is not installed or nothing was logged."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    entries = log.read(folder / log.FILE)
    steps = [e for e in entries if "losses" in e]
    if not steps:
        return None
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for name in sorted({n for e in steps for n in e["losses"]}):
        points = [(e["tokens"] / 1e6, e["losses"][name]) for e in steps if name in e["losses"]]
        left.plot(*zip(*points, strict=True), label=name, linewidth=0.8)
    left.set(xlabel="million tokens seen", ylabel="loss")
    looks: dict[str, list[Any]] = {}
    for e in entries:
        if "tokens_per_pass" in e:
            looks.setdefault(e["recipe"], []).append((e["step"], e["tokens_per_pass"]))
    for name, points in looks.items():
        right.plot(*zip(*points, strict=True), marker="o", label=name)
    right.set(xlabel="step", ylabel="tokens per pass, held-out prompts")
    for axes in (left, right):
        if axes.lines:
            axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    figure.tight_layout()
    path = folder / "curves.svg"
    figure.savefig(path)
    pyplot.close(figure)
    return path
