"""The speed-up predicted from the terms of a round, and the measured one.

    plain    one token a round:    t(1)           + verify + rest
    recipe   tau tokens a round:   t(n) + draft   + verify + rest       n: the tree sizes that were really verified

    speed-up = tau * plain / recipe

Estimates and tau come from one set of rounds, the calibration, and are compared with another set: t and draft through the
cost model that the controllers use, the others as means. Of the other set only the sizes and contexts of its passes are
used, no time and no token. With equal sets the prediction would be correct by construction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log

from draftwood.bench.statistics import Ratio
from draftwood.controllers.costs.cost import CostModel
from draftwood.core.verdict import Times

CLOSE = 0.15  # largest relative error of a good prediction


@dataclass(frozen=True, slots=True)
class Spent:
    """One round of one answer. `wall`: seconds measured around the round; `times`: those of its parts."""

    times: Times
    wall: float
    emitted: int


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds of a mean round, by part. `nodes`: tokens of its target pass; `tokens`: those it emitted."""

    nodes: float
    tokens: float
    score: float
    draft: float
    verify: float
    rest: float

    @property
    def total(self) -> float:
        return self.score + self.draft + self.verify + self.rest


@dataclass(frozen=True, slots=True)
class Pair:
    """Plain decoding and a recipe on the same prompts."""

    plain: Terms
    recipe: Terms

    @property
    def speed_up(self) -> float:
        a, b = self.plain, self.recipe
        return b.tokens / a.tokens * a.total / b.total


@dataclass(frozen=True, slots=True)
class Forecast:
    """`predicted` from the calibration's rounds, `measured` on the others; `ratio`: the measured speed-up of the others."""

    predicted: Pair
    measured: Pair
    ratio: Ratio

    @property
    def gap(self) -> float:
        """Predicted over measured."""
        return self.predicted.speed_up / self.ratio.value

    @property
    def close(self) -> bool:
        return abs(self.gap - 1) <= CLOSE

    @property
    def estimates_only(self) -> float:
        """The prediction with the measured tokens per pass: its error is that of the cost model alone."""
        tokens = self.measured.recipe.tokens
        return replace(self.predicted, recipe=replace(self.predicted.recipe, tokens=tokens)).speed_up

    def errors(self) -> dict[str, float]:
        """By term: the factor by which the prediction is too high because of this term alone. The largest first."""
        p, found = self.predicted, dict[str, float]()
        for name, (side, *terms) in TERMS.items():
            measured = {term: getattr(getattr(self.measured, side), term) for term in terms}
            other = replace(p, **{side: replace(getattr(p, side), **measured)})
            found[name] = p.speed_up / other.speed_up
        return dict(sorted(found.items(), key=lambda each: -abs(log(each[1]))))


# By name: plain decoding or the recipe, and fields of its Terms.
TERMS = {
    "tokens per pass": ("recipe", "tokens"),
    "plain target pass": ("plain", "score"),
    "plain verify and rest": ("plain", "draft", "verify", "rest"),
    "target pass": ("recipe", "score"),
    "draft": ("recipe", "draft"),
    "verify": ("recipe", "verify"),
    "rest": ("recipe", "rest"),
}


def fitted(rounds: Sequence[Spent]) -> CostModel:
    """The cost model fitted to these rounds, all with equal weight."""
    model = CostModel(forget=1.0)
    for each in rounds:
        model.observe(each.times)
    return model


def observed(rounds: Sequence[Spent]) -> Terms:
    """The mean round."""
    return _terms(rounds, lambda t: t["score"], lambda t: t["propose"])


def estimated(known: Sequence[Spent], others: Sequence[Spent], cost_model: CostModel) -> Terms:
    """The predicted mean round of `others`: target passes by the cost model, all other terms as in `known`."""
    ahead = _terms(others, lambda t: cost_model.pass_seconds(t.tokens, t.context), lambda t: 0.0)
    # A drafter without passes (a lookup) has no estimate; its measured seconds are used.
    terms = _terms(
        known,
        lambda t: 0.0,
        lambda t: cost_model.draft_seconds(t.draft_passes, t.draft_nodes) if t.draft_passes else t["propose"],
    )
    return replace(terms, score=ahead.score, nodes=ahead.nodes)


def _terms(rounds: Sequence[Spent], score: Callable[[Times], float], draft: Callable[[Times], float]) -> Terms:
    n = len(rounds)
    known = ("score", "propose", "verify")
    return Terms(
        nodes=sum(r.times.tokens for r in rounds) / n,
        tokens=sum(r.emitted for r in rounds) / n,
        score=sum(score(r.times) for r in rounds) / n,
        draft=sum(draft(r.times) for r in rounds) / n,
        verify=sum(r.times["verify"] for r in rounds) / n,
        rest=sum(r.wall - sum(r.times[part] for part in known) for r in rounds) / n,
    )
