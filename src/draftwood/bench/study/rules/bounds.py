"""bounds: the acceptance of rules on real drafts, and the most that any exact rule can accept.

A drafter and its target answer prompts. At every position that the rule reaches, the pair of distributions (p, q) is
recorded. On these pairs the acceptance of a rule with k siblings is computed by a formula, or sampled by running the rule
where no formula is known. So all rules are compared on the same positions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood import recipes
from draftwood.bench.statistics import Estimate, mean_by_group
from draftwood.bench.study.rules.known_distributions import drafted, round_of, scored
from draftwood.bench.study.single_prompt import ask, engine, need_prompts
from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import Needs
from draftwood.core.legal_draws import RULES, Draw, Shape
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Verifier
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict
from draftwood.errors import OptionError
from draftwood.models.loading.load import Loaded
from draftwood.runners.open import runner_of
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers.formulas import rates
from draftwood.verifiers.formulas.bounds import best_distinct, best_iid
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

DEPTH = 4  # drafted tokens of a round while pairs are recorded
SLACK = 1e-7  # an excess over a bound below this is rounding
SURE = 4.0  # standard errors by which a sample must exceed a bound to count as an error

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Distributions at positions that a rule reached, on the CPU; `prompt`: the index of the prompt of each."""

    p: Float[Tensor, "R V"]
    q: Float[Tensor, "R V"]
    prompt: tuple[int, ...]


@dataclass(slots=True)
class Recording:
    """Verifies by `inner` and records the distributions at the nodes on its path that have drawn children."""

    inner: Verifier
    most: int  # pairs of one prompt
    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Rejection"].draws
    shapes: frozenset[Shape] = RULES["Rejection"].shapes
    p: list[Tensor] = field(default_factory=list[Tensor])
    q: list[Tensor] = field(default_factory=list[Tensor])

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        verdict = self.inner.verify(proposal, target, rnd)
        indices = proposal.q_indices()
        for column in verdict.path.unbind(1):  # one sequence at a time, so a column is one node
            index = indices.gather(1, column.clamp_min(0)[:, None])[:, 0]
            if len(self.p) < self.most and int(column[0]) >= 0 and int(index[0]) >= 0 and proposal.q is not None:
                self.p.append(target.probs(column).dense()[0].float().cpu())
                self.q.append(proposal.q.dense(index, target.vocab_size)[0].float().cpu())
        return verdict


def record(
    loaded: Loaded,
    recipe: str | Recipe,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    top_p: float = 1.0,
    positions: int = 96,
    max_tokens: int = 64,
    seed: int = 0,
    say: Say = lambda text: None,
    **options: Any,
) -> Pairs:
    """At most `positions` pairs, evenly from all prompts. Only the recipe's drafter is used. It drafts a chain: any rule
    may reach its positions."""
    need_prompts(prompts)
    if not temperature > 0:
        raise OptionError(
            f"temperature cannot be {temperature:g}\nhint: above 0; at 0 every exact rule follows the target's best token"
        )
    made = recipes.build(recipe, runner_of(loaded), **options) if isinstance(recipe, str) else recipe
    if Draw.IID not in made.drafter.draws:
        raise OptionError(
            f"{type(made.drafter).__name__} draws from no distribution, so there is no q\nhint: try eagle3 or fast_draft"
        )
    p, q, of = list[Tensor](), list[Tensor](), list[int]()
    for i, prompt in enumerate(prompts):
        say(f"temperature {temperature:g}: prompt {i + 1} of {len(prompts)}")
        recording = Recording(Rejection(), most=-(-(positions - len(p)) // (len(prompts) - i)))
        whole = replace(made, policy=Chain(Draw.IID), verifier=recording, controller=Fixed(depth=DEPTH))
        llm = engine(loaded, whole, [prompt], max_tokens)
        ask(llm, prompt, i, temperature=temperature, top_p=top_p, seed=seed, max_tokens=max_tokens)
        p, q, of = p + recording.p, q + recording.q, of + [i] * len(recording.p)
    if not p:
        raise OptionError("nothing was drafted\nhint: longer answers, or a drafter that drafts more")
    return Pairs(torch.stack(p), torch.stack(q), tuple(of))


@dataclass(frozen=True, slots=True)
class Line:
    """Acceptance of a rule by number of siblings. `bound`: the name of the line it cannot exceed; None for bounds."""

    name: str
    draw: str
    kept: dict[int, Estimate]
    bound: str | None = None
    sampled: tuple[int, ...] = ()  # numbers of siblings at which acceptance was sampled, not computed


@dataclass(frozen=True, slots=True)
class Compared:
    """One temperature. `above`: what exceeded its bound, which would be an error of this program."""

    temperature: float
    pairs: int
    prompts: int
    lines: tuple[Line, ...]
    above: tuple[str, ...] = ()


BEST_IID, BEST_DISTINCT = "best of any rule", "best of any rule, distinct"


def compare(
    pairs: Pairs,
    siblings: Sequence[int],
    temperature: float,
    *,
    trials: int = 4,
    seed: int = 0,
    say: Say = lambda text: None,
) -> Compared:
    """Every rule and both bounds on the same pairs. `trials`: samples at each pair where a rule has no formula."""
    if not siblings or min(siblings) < 1:
        raise OptionError(f"k cannot be {list(siblings)}\nhint: numbers of siblings, 1 or more")
    p, q = pairs.p, pairs.q
    most = max(siblings)
    say(f"temperature {temperature:g}: bounds of {len(p)} pairs")
    bounds = {BEST_IID: best_iid(p, q, most), BEST_DISTINCT: best_distinct(p, q, most)}
    say(f"temperature {temperature:g}: rules")
    values: list[tuple[str, str, str | None, dict[int, Tensor], tuple[int, ...]]] = []
    for name, rate in IID.items():
        values.append((name, "iid", BEST_IID, {k: rate(p, q, k) for k in siblings}, ()))
    values.append((BEST_IID, "iid", None, {k: bounds[BEST_IID][:, k - 1] for k in siblings}, ()))
    for name, (rule, pair) in DISTINCT.items():
        one = IID[name.partition(",")[0]](p, q, 1)  # one draw is the same with replacement and without
        known = {1: one, 2: pair(p, q)}
        run = tuple(k for k in siblings if k not in known)
        each = {k: known[k] if k in known else sampled(rule, Draw.DISTINCT, pairs, k, trials, seed) for k in siblings}
        values.append((name, "distinct", BEST_DISTINCT, each, run))
    values.append((BEST_DISTINCT, "distinct", None, {k: bounds[BEST_DISTINCT][:, k - 1] for k in siblings}, ()))
    values.append(("best guesses and one draw", "greedy", None, {k: rates.greedy(p, q, k) for k in siblings}, ()))
    above = [
        f"{name} with {k} siblings"
        for name, _, bound, each, run in values
        for k, kept in each.items()
        if bound is not None and exceeds(kept, bounds[bound][:, k - 1], trials if k in run else None)
    ]
    lines = [
        Line(name, draw, {k: mean_by_group(x.tolist(), pairs.prompt, seed=seed) for k, x in each.items()}, bound, run)
        for name, draw, bound, each, run in values
    ]
    return Compared(temperature, len(p), len(set(pairs.prompt)), tuple(lines), tuple(above))


Rate = Callable[[Tensor, Tensor, int], Tensor]
IID: dict[str, Rate] = {
    "match": rates.match_iid,
    "first draw, others by luck": rates.first_iid,
    "rejection": rates.rejection_iid,
    "transport": rates.transport_iid,
    "selection by rank (at least)": rates.selection_iid,
}
DISTINCT: dict[str, tuple[Verifier, Callable[[Tensor, Tensor], Tensor]]] = {
    "match, distinct": (Match(), rates.match_two_distinct),
    "rejection, distinct": (Rejection(), rates.rejection_two_distinct),
}


def sampled(rule: Verifier, draw: Draw, pairs: Pairs, k: int, trials: int, seed: int = 0) -> Float[Tensor, "R"]:
    """Share of `trials` rounds in which a rule accepts one of k siblings, pair by pair, with new drafts each time."""
    p, q = pairs.p, pairs.q
    kept, logits = torch.zeros(len(p), dtype=torch.float64), p.log()
    for turn in range(trials):
        rnd = round_of(len(p), p.shape[1], seed=seed + turn + 1)
        made = drafted(Static((k,), draw), rnd, 1, k, lambda frontier: DraftProbs(q))
        place = torch.arange(len(p))[:, None].expand(-1, made.tree.num_nodes)
        kept += rule.verify(made, scored(logits, place, made.tree, rnd), rnd).count > 0
    return kept / trials


def exceeds(kept: Float[Tensor, "R"], bound: Float[Tensor, "R"], trials: int | None = None) -> bool:
    """A formula may not exceed its bound at any pair, a sample not beyond chance over all of them."""
    if trials is None:
        return bool((kept > bound + SLACK).any())
    chance = float((bound * (1 - bound) / trials).clamp_min(0).sum()) ** 0.5
    return float((kept - bound).sum()) > SURE * chance + SLACK * len(kept)


def draw(found: Sequence[Compared], path: Path) -> Path | None:
    """The figure: acceptance over the number of siblings, a panel per temperature. None without matplotlib."""
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
