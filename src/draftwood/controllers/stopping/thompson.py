"""Thompson sampling: after every drafted token a random number decides whether the chain goes on.

    root ─ a ─ b ─ c          theta drawn after each token, z ~ Bernoulli(theta); z = 0 after c: nothing is drafted below it

`BetaThompson` draws theta from the posterior Beta(alpha, beta) of a token's acceptance. `CalibratedThompson` draws it around
the draft's own probability s of the token: theta = clip(s + eps, 0, 1), eps ~ Normal(mu, sigma^2 / n), where mu and sigma
are the mean and standard deviation of (accepted - s) over n judged tokens.

theta is drawn anew for every token and used for one coin only. Such a coin is Bernoulli(E[theta]), independent of the
others, so only the coin is tossed: with alpha / (alpha + beta), or with the mean of a clipped normal. This is exact.

The coin is keyed by (seed, position of the root, node) under a purpose of its own. It depends on no draw and no acceptance
that follows, a token already drawn is never taken back, and the state is that of finished rounds. So every rule stays exact.
Nothing is read from a device: the posterior is made of host numbers, the calibration of tensors that stay on the device.
On an accelerator the frontier is not read either: a stopped chain has fewer nodes, but all draft passes are run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, pi, sqrt

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.forward import Needs
from draftwood.core.host import put
from draftwood.core.limit import Limit, Load
from draftwood.core.round import Round
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Outcome
from draftwood.errors import DrafterError, OptionError, need_size

PURPOSE = "thompson"
"""Of the coins. A purpose shared with a draw or an acceptance below the node would bias the output."""

PRIOR = (1.0, 0.0, 0.25)
"""Count, sum and sum of squares of (accepted - s) before anything is judged: one token, with a deviation of 1/2."""


@dataclass(slots=True)
class Posterior:
    """Of a token's acceptance."""

    alpha: float
    beta: float

    @property
    def mean(self) -> float:
        return self.alpha / (self.alpha + self.beta)


@dataclass(slots=True)
class _Posteriors:
    shared: Posterior
    slots: dict[int, Posterior] = field(default_factory=dict[int, Posterior])


@dataclass(frozen=True, slots=True)
class BetaThompson:
    """At most `depth` levels and `nodes` drafted nodes (None: a chain of that depth). After a round with `a` of K drafted
    tokens accepted, in this order:

        alpha, beta  <-  prior + forget * (alpha - prior_alpha, beta - prior_beta)
        alpha        <-  alpha + a
        beta         <-  beta + (1 if a < K else 0), or beta + K - a if not `censored`

    The prior is (`alpha`, `beta`). `censored`: tokens behind the first rejected one count as not judged. `shared`: one
    posterior for all requests, which outlives them and forgets once a round; otherwise each request has its own."""

    depth: int
    nodes: int | None = None
    alpha: float = 1.0
    beta: float = 1.0
    forget: float = 0.99
    shared: bool = False
    censored: bool = True
    needs: Needs = Needs()

    def __post_init__(self) -> None:
        _check("BetaThompson", self.depth, self.nodes, self.forget)
        for option, value in (("alpha", self.alpha), ("beta", self.beta)):
            if not _is_number(value) or not 0 < value < inf:
                raise OptionError(f"BetaThompson: {option} cannot be {value}\nhint: a finite number above 0")

    def init(self, slots: int) -> _Posteriors:
        return _Posteriors(Posterior(self.alpha, self.beta))

    def posterior(self, state: _Posteriors, slot: int) -> Posterior:
        return state.shared if self.shared else state.slots.setdefault(slot, Posterior(self.alpha, self.beta))

    def plan(self, state: _Posteriors, rnd: Round, load: Load) -> Limit:
        mean = [[self.posterior(state, slot).mean] for slot in rnd.host_slots]
        stop = _Stop(rnd, put(mean, rnd.device, torch.float64), _mean)
        return _limit(self.depth, self.nodes, stop)

    def update(self, state: _Posteriors, rnd: Round, outcome: Outcome) -> None:
        judged = zip(rnd.host_slots, outcome.judged, outcome.accepted, strict=True)
        drafts = [(slot, (levels, kept)) for slot, levels, kept in judged if levels]
        if self.shared:
            self.learn(state.shared, *(draft for _, draft in drafts))
            return
        for slot, draft in drafts:
            self.learn(self.posterior(state, slot), draft)

    def learn(self, own: Posterior, *drafts: tuple[int, int]) -> None:
        """The drafts of one round, each as (drafted, accepted)."""
        if not drafts:
            return
        own.alpha = self.alpha + self.forget * (own.alpha - self.alpha)
        own.beta = self.beta + self.forget * (own.beta - self.beta)
        for drafted, accepted in drafts:
            rejected = drafted - accepted
            own.alpha += accepted
            own.beta += min(rejected, 1) if self.censored else rejected

    def free(self, state: _Posteriors, slots: Sequence[int]) -> None:
        for slot in slots:
            state.slots.pop(slot, None)


@dataclass(slots=True, eq=False)
class _Shown:
    """What the drafter gave the tokens of one draft, level by level, as far as the rule was asked about them."""

    slots: list[int]
    levels: list[Float[Tensor, "R"]] = field(default_factory=list[Tensor])


@dataclass(slots=True)
class Calibration:
    """Count, sum and sum of squares of (accepted - s), without the prior: by slot, or of all requests in a single row."""

    moments: Float[Tensor, "S 3"]
    shown: dict[int, _Shown] = field(default_factory=dict[int, _Shown])  # the newest draft of each slot


@dataclass(frozen=True, slots=True)
class CalibratedThompson:
    """At most `depth` levels and `nodes` drafted nodes (None: a chain of that depth). Count, sum and sum of squares of
    (accepted - s), from which n, mu and sigma follow, are multiplied by `forget` in every round with a draft, and then those
    of its judged tokens are added: of the tokens up to and including the first rejected one.

    The probabilities s are those that the rule was asked about while the chain was drafted. The last token of a draft of the
    full depth is never asked about, so it is not counted. Nor are trees: levels of several nodes stop by the same coins, but
    teach nothing. `shared`: one calibration for all requests, which outlives them; otherwise each request has its own."""

    depth: int
    nodes: int | None = None
    forget: float = 0.99
    shared: bool = False
    needs: Needs = Needs()

    def __post_init__(self) -> None:
        _check("CalibratedThompson", self.depth, self.nodes, self.forget)

    def init(self, slots: int) -> Calibration:
        return Calibration(torch.zeros(1 if self.shared else slots, 3, dtype=torch.float64))

    def rows(self, slots: Sequence[int]) -> list[int]:
        return [0] * len(slots) if self.shared else list(slots)

    def plan(self, state: Calibration, rnd: Round, load: Load) -> Limit:
        state.moments = state.moments.to(rnd.device)
        known = state.moments[put(self.rows(rnd.host_slots), rnd.device)]
        stop = _Stop(rnd, known + put(PRIOR, rnd.device, torch.float64), calibrated, state.shown, self.depth)
        return _limit(self.depth, self.nodes, stop)

    def update(self, state: Calibration, rnd: Round, outcome: Outcome) -> None:
        each = zip(outcome.judged, outcome.accepted, strict=True)
        found = dict(zip(rnd.host_slots, each, strict=True))
        drafts = {id(shown): shown for slot in found if (shown := state.shown.get(slot)) is not None}
        drafted = {row for slot, (levels, _) in found.items() if levels for row in self.rows([slot])}
        if drafted:
            keep = [[self.forget if row in drafted else 1.0] for row in range(len(state.moments))]
            state.moments = state.moments * put(keep, rnd.device, torch.float64)
        for shown in drafts.values():
            # A slot that was drafted again in the same round learns from its newest draft only.
            of_slot = [found.get(slot, (0, 0)) if state.shown.get(slot) is shown else (0, 0) for slot in shown.slots]
            if shown.levels:
                added = sums(torch.stack(shown.levels, dim=1), of_slot)
                if self.shared:
                    added = added.sum(0, keepdim=True)  # index_add of equal rows has no fixed order
                rows = self.rows(shown.slots)[: len(added)]
                state.moments = state.moments.index_add(0, put(rows, rnd.device), added)
        for slot in found:
            state.shown.pop(slot, None)

    def free(self, state: Calibration, slots: Sequence[int]) -> None:
        for slot in slots:
            state.shown.pop(slot, None)
        if slots and not self.shared:
            state.moments = state.moments.index_fill(0, put(list(slots), state.moments.device), 0.0)


def sums(s: Float[Tensor, "R L"], found: Sequence[tuple[int, int]]) -> Float[Tensor, "R 3"]:
    """Count, sum and sum of squares of (accepted - s) over the judged tokens of chains, each with its (judged levels,
    accepted tokens)."""
    levels = range(s.shape[1])
    judged = put([[i < min(kept + 1, deep) for i in levels] for deep, kept in found], s.device, torch.float64)
    accepted = put([[i < kept for i in levels] for _, kept in found], s.device, torch.float64)
    off = accepted - s.double()
    return torch.stack([judged, judged * off, judged * off * off], dim=-1).sum(1)


def calibrated(s: Float[Tensor, "B F"], moments: Float[Tensor, "B 3"]) -> Float[Tensor, "B F"]:
    """E[clip(s + eps, 0, 1)] for eps ~ Normal(mu, sigma^2 / n)."""
    count, total, squares = moments[:, None].unbind(-1)  # each [B, 1]
    mu = total / count
    return clipped_mean(s + mu, ((squares / count - mu * mu).clamp_min(0) / count).sqrt())


def clipped_mean(mean: Float[Tensor, "*S"], deviation: Float[Tensor, "*#S"]) -> Float[Tensor, "*S"]:
    """E[clip(x, 0, 1)] for x ~ Normal(mean, deviation^2); without deviation, the clipped mean itself.

    mean * (Phi(b) - Phi(a)) + deviation * (phi(a) - phi(b)) + 1 - Phi(b),   a = -mean / deviation, b = a + 1 / deviation
    """
    wide = deviation.clamp_min(1e-12)
    a, b = -mean / wide, (1 - mean) / wide
    inside = torch.special.ndtr(b) - torch.special.ndtr(a)
    density = (torch.exp(-a * a / 2) - torch.exp(-b * b / 2)) / sqrt(2 * pi)
    return (mean * inside + wide * density + torch.special.ndtr(-b)).clamp(0, 1)


def _mean(s: Float[Tensor, "B F"], mean: Float[Tensor, "B 1"]) -> Float[Tensor, "B F"]:
    return mean.expand_as(s)


@dataclass(frozen=True, slots=True, eq=False)
class _Stop:
    """The coins of a round, as `Limit.proceed`. The first level is always drawn."""

    rnd: Round
    known: Float[Tensor, "B K"]  # of each sequence
    chance: Callable[[Tensor, Tensor], Tensor]  # (own probabilities, known) -> chances to go on
    shown: dict[int, _Shown] | None = None  # where the probabilities of chains are noted
    most: int = 0  # levels below this one are noted

    def __call__(
        self,
        tree: TokenTree,
        frontier: Int[Tensor, "B F"],
        above: Float[Tensor, "B F H"] | None,
        own: Float[Tensor, "B F"],
    ) -> Bool[Tensor, "B F"]:
        if len(frontier) != self.rnd.batch:
            raise DrafterError(f"a limit of {self.rnd.batch} sequences was used for {len(frontier)}")
        if self.shown is not None:
            self._note(self.shown, tree.num_nodes - 1, own)
        prob = self.chance(own.double(), self.known)
        heads = self.rnd.coin(PURPOSE, frontier.clamp_min(0), prob, frontier > 0)
        return heads | (frontier == 0)

    def _note(self, shown: dict[int, _Shown], level: int, own: Float[Tensor, "B F"]) -> None:
        """In a chain, level i is node i. A bare root begins a new draft; what does not continue a chain is left out."""
        slots = self.rnd.host_slots
        if level == 0:
            shown.update(dict.fromkeys(slots, _Shown(slots)))
        elif slots and slots[0] in shown and own.shape[1] == 1 and level < self.most:
            draft = shown[slots[0]]
            if draft.slots == slots and len(draft.levels) == level - 1:
                draft.levels.append(own[:, 0])

    def take(self, sequences: Sequence[int]) -> "_Stop":
        """Some sequences, in order, with the same coins."""
        known = self.known[put(sequences, self.known.device)]
        return replace(self, rnd=self.rnd.take(list(sequences)), known=known)


def _limit(depth: int, nodes: int | None, stop: _Stop) -> Limit:
    batch, most = stop.rnd.batch, depth if nodes is None else nodes
    budgets = (most if depth else 0,) * batch
    return Limit((depth,) * batch, budgets, stop.rnd.device, stop)


def _check(name: str, depth: int, nodes: int | None, forget: float) -> None:
    need_size(name, depth=(depth, 0), nodes=(depth if nodes is None else nodes, 0))
    if not _is_number(forget) or not 0 <= forget <= 1:
        raise OptionError(f"{name}: forget cannot be {forget}\nhint: from 0 to 1")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
