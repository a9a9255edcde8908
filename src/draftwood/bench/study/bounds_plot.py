"""The figure of `draftwood bounds`: acceptance over the number of siblings, one panel per temperature."""

from collections.abc import Sequence
from pathlib import Path

from draftwood.bench.study.bounds import Compared


def draw(found: Sequence[Compared], path: Path) -> Path | None:
    """None where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(found), figsize=(5 * len(found), 4), sharey=True, squeeze=False)
    for axes, one in zip(panels[0], found, strict=True):
        for line in one.lines:
            bound = line.bound is None and line.draw != "greedy"
            style = {"color": "black", "linestyle": "-" if line.draw == "iid" else "--"} if bound else {"marker": "o"}
            axes.plot(list(line.kept), [e.value for e in line.kept.values()], label=line.name, linewidth=1, **style)
        axes.set(xlabel="siblings", title=f"temperature {one.temperature:g}, {one.pairs} positions")
        axes.grid(alpha=0.3)
    panels[0][0].set(ylabel="one of them is accepted")
    panels[0][-1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
    return path
