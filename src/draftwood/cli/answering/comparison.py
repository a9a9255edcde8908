"""Comparison: the same prompt with a recipe and by plain decoding, as numbers and as a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from draftwood.cli.screen import Screen, table

if TYPE_CHECKING:
    from draftwood.core.sampling.params import SamplingParams
    from draftwood.llm import LLM
    from draftwood.results import Result


TIE = 0.02  # a smaller difference in speed is within the noise of the timing


def same_text_promised(llm: "LLM", params: "SamplingParams") -> bool:
    """Whether the recipe must give the text of plain decoding: it is greedy, or it follows the target's own draws."""
    from draftwood.bench.spec.text_equality import not_compared

    return not not_compared(llm.recipe, params.temperature)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs of one prompt, with the recipe and plain, measured in the same process one after the other."""

    chosen: Sequence["Result"]
    plain: Sequence["Result"]
    promised: bool  # the texts must be the same

    @property
    def identical(self) -> bool:
        return len({(r.token_ids, r.text) for r in (*self.chosen, *self.plain)}) == 1

    @property
    def kept(self) -> bool:
        """False if the texts differ and must not."""
        return self.identical or not self.promised

    @property
    def ratio(self) -> float:
        """Speed with the recipe, in units of the plain speed."""
        plain = speed(self.plain)
        return speed(self.chosen) / plain if plain else 0.0

    @property
    def tied(self) -> bool:
        return abs(self.ratio - 1) < TIE

    def words(self) -> str:
        """Faster or slower, and why the texts may differ."""
        name, ratio = self.chosen[0].recipe, self.ratio
        if self.tied:
            said = f"{name} is as fast as plain decoding here."
        elif ratio > 1:
            said = f"{name} is {ratio:.2f} times as fast as plain decoding here."
            if ratio > (1 + TIE) * per_pass(self.chosen):
                said += " That is more than its tokens per pass allow: the times are noisy."
        else:
            said = f"{name} is slower than plain decoding here: {ratio:.2f} times its speed."
        if not self.identical:
            said += f" The texts differ from token {self._parting()} on"
            if self.promised:
                said += ", and should not: run both with --dtype float64, where no near tie can be decided by rounding."
            elif self.chosen[0].lossless:
                said += ": both are drawn from the same distribution, each with draws of its own."
            else:
                said += f": {name} is LOSSY."
        return said

    def show(self, screen: Screen) -> None:
        speeds = ("tokens/s", "tokens per pass")
        drawn = table("recipe", *speeds, "speed", "identical", numbers=set(speeds))
        slower = " slower" if self.ratio < 1 and not self.tied else ""
        for results, times, verdict in (
            (self.plain, "1.00x", ""),
            (self.chosen, f"{self.ratio:.2f}x{slower}", "yes" if self.identical else "no"),
        ):
            name = results[0].recipe + ("" if results[0].lossless else " (LOSSY)")
            drawn.add_row(name, f"{speed(results):.1f}", f"{per_pass(results):.2f}", times, verdict)
        screen.show(drawn)
        screen.line(self.words())

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "recipe": self.plain[0].recipe,
            "text": self.plain[0].text,
            "tokens_per_second": speed(self.plain),
            "tokens_per_pass": per_pass(self.plain),
            "identical": self.identical,
            "faster": self.ratio,
        }

    def _parting(self) -> int:
        """How many tokens all runs share."""
        columns = zip(*(r.token_ids for r in (*self.chosen, *self.plain)), strict=False)
        return len(list(takewhile(lambda column: len(set(column)) == 1, columns)))


def speed(results: Sequence["Result"]) -> float:
    """Tokens per second over all runs."""
    seconds = sum(r.seconds for r in results)
    return sum(len(r.token_ids) for r in results) / seconds if seconds else 0.0


def per_pass(results: Sequence["Result"]) -> float:
    passes = sum(r.stats.target_passes for r in results)
    return sum(len(r.token_ids) for r in results) / passes if passes else 0.0
