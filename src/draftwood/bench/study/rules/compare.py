"""bench rules: every exact rule on every tree, with real drafts of real questions.

For each drafter, temperature and tree the engine answers the questions once. A token-level rule decides (rejection, or
matching where nothing was drawn); all other rules that are exact for such a draft verify the same trees. So rules are
compared in pairs, on the positions of that one run. Tokens are counted as a rule accepts them, not cut at an end token.

At the first level there is a bound that no exact rule exceeds. It is compared with formulas at single positions, and with
the rules' own verdicts, which may exceed it by chance only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import torch

from draftwood.bench.spec.questions import spread
from draftwood.bench.statistics import Estimate, Ratio, mean_by_group, ratio_of_means, ratio_of_pairs
from draftwood.bench.study.rules.bounds import exceeds
from draftwood.bench.study.rules.first_level import bound, rate
from draftwood.bench.study.rules.known_distributions import known_rules
from draftwood.bench.study.rules.paired_runs import PairedRound, PairedRules, Root
from draftwood.bench.study.rules.rule_trees import Tree, trees
from draftwood.bench.study.single_prompt import ask, engine, need_prompts
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Shape, legal_rules
from draftwood.core.protocols import Drafter, TreePolicy, Verifier
from draftwood.core.recipe import Recipe
from draftwood.errors import OptionError, UnknownNameError
from draftwood.models.loading.load import Loaded
from draftwood.verifiers.path_block import PathBlock
from draftwood.verifiers.selection import Selection

SLACK = 1e-6  # an excess over a bound below this is rounding
LOOSE = 12  # positions at most where the bound is loose: with many draws it takes half a second
AHEAD = ("Traversal", "Block")  # rules that are never worse than rejection on the same tree
TOKEN_LEVEL = ("Rejection", "Match")  # the deciding rule, with which the others are compared
COUNTED, LP = "PathBlock:counted", "Selection:lp"

T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Line:
    """One rule on one kind of tree; intervals are over prompts."""

    rule: str
    tokens: Estimate  # per pass: accepted, and one
    over: Ratio | None  # tokens over those of the deciding rule; None for itself
    path: Ratio | None  # accepted over levels drafted
    first: Estimate  # share of rounds that accepted the first level
    expected: float | None  # the same by formula, at the positions of the bound
    ms: float
    share: Ratio | None  # of the target pass


@dataclass(frozen=True, slots=True)
class Cell:
    """One drafter, temperature and tree. `bound`: the mean over `roots` positions; `loose`: at most that."""

    drafter: str
    temperature: float
    tree: str
    draw: str
    shape: str
    rounds: int
    nodes: float
    depth: float
    pass_ms: float | None
    lines: tuple[Line, ...]
    bound: Estimate | None
    roots: int
    loose: bool
    exceeded: int  # positions where a formula lies above the bound
    above: tuple[str, ...]  # rules that accepted more than chance allows


def all_rules(*, lp: bool = False) -> dict[str, Verifier]:
    """By name: those of the table of pairings, and variants by their options."""
    found = {name: rule for name, rule in known_rules().items() if rule is not None}
    found[COUNTED] = PathBlock(counted=True)
    if lp:
        found[LP] = Selection("lp")
    return found


def able_rules(rules: dict[str, Verifier], policy: TreePolicy, temperature: float) -> dict[str, Verifier]:
    """Those that are exact for the policy's drafts, the deciding one first. At temperature 0 all accept the same."""
    legal = legal_rules(policy.draw, policy.shape) if temperature > 0 else ["Match"]
    first = next(name for name in TOKEN_LEVEL if name in legal)
    if policy.shape is Shape.CHAIN:  # one path has nothing to count
        rules = {name: rule for name, rule in rules.items() if name != COUNTED}
    names = [first, *(name for name in rules if name.partition(":")[0] in legal and name != first)]
    return {name: rules[name] for name in names}


def chosen_rules(names: Sequence[str], *, lp: bool = False) -> dict[str, Verifier]:
    """The named rules, in any spelling (PathBlock, path_block), and the deciding ones; all if none is named."""
    wanted = {*spelt_rules(names, lp=lp), *TOKEN_LEVEL}
    return {name: rule for name, rule in all_rules(lp=lp).items() if not names or name in wanted}


def spelt_rules(names: Sequence[str], *, lp: bool = False) -> list[str]:
    """Names in any spelling as we spell them."""
    known = all_rules(lp=lp)
    spelt = {_plain(name): name for name in known}
    for name in names:
        if _plain(name) not in spelt:
            raise UnknownNameError("rule", name, known)
    return [spelt[_plain(name)] for name in names]


def left_out(names: Sequence[str], shapes: dict[str, Tree], *, lp: bool = False) -> list[str]:
    """Requested pairings that are not exact, each with the rules that are. Refused: a rule that is exact on none of these
    trees."""
    known, said = all_rules(lp=lp), list[str]()
    for rule in spelt_rules(names, lp=lp):
        lost = {
            name: exact for name, tree in shapes.items() if rule not in (exact := able_rules(known, tree.policy, 1.0))
        }
        if len(lost) == len(shapes):
            fit = [name for name, tree in trees().items() if rule in able_rules(known, tree.policy, 1.0)]
            raise OptionError(
                f"{rule} is not exact on {' or '.join(lost)}, so there is nothing to measure\n"
                f"hint: trees for it: {', '.join(fit)}; exact on {next(iter(lost))}: {', '.join(next(iter(lost.values())))}"
            )
        said += [f"left out: {rule} on {name}; exact there: {', '.join(exact)}" for name, exact in lost.items()]
    return said


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def measure(
    loaded: Loaded,
    drafter: tuple[str, Drafter],
    tree: tuple[str, Tree],
    temperature: float,
    prompts: Sequence[Sequence[int]],
    rules: dict[str, Verifier],
    *,
    top_p: float = 1.0,
    max_tokens: int = 64,
    trials: int = 1,
    every: int = 8,
    seed: int = 0,
    say: Say = lambda text: None,
) -> Cell | None:
    """One cell; None where this tree has nothing to compare at this temperature."""
    need_prompts(prompts)
    policy = tree[1].at(temperature)
    if policy is None:
        return None
    if policy.draw not in drafter[1].draws:
        raise OptionError(
            f"{drafter[0]} cannot fill the tree {tree[0]}: it draws from no distribution\nhint: eagle3, fast_draft, .."
        )
    able = able_rules(rules, policy, temperature)
    paired = PairedRules(able, trials if temperature > 0 else 1, every)
    controller = Fixed(depth=tree[1].depth, nodes=tree[1].nodes)
    whole = Recipe(drafter=drafter[1], policy=policy, verifier=paired, controller=controller, watch=(paired.watch,))
    llm = engine(loaded, whole, prompts, max_tokens)  # one for all prompts: fresh memory is slow and disturbs times
    groups: list[int] = []
    for i, prompt in enumerate(prompts):
        ask(llm, prompt, i, temperature=temperature, top_p=top_p, seed=seed, max_tokens=max_tokens)
        groups += [i] * (len(paired.rounds) - len(groups))
        say(f"{i + 1}/{len(prompts)} prompts")
    if not paired.rounds:
        raise OptionError("nothing was drafted\nhint: longer answers, or a drafter that drafts more")
    return summary(drafter[0], tree, temperature, policy, paired.rounds, groups, seed)


def summary(
    drafter: str,
    tree: tuple[str, Tree],
    temperature: float,
    policy: TreePolicy,
    rounds: Sequence[PairedRound],
    groups: Sequence[int],
    seed: int = 0,
) -> Cell:
    """The figures of one cell. `groups`: the prompt of each round."""
    names = list(rounds[0].rules)
    whole = Sums(rounds, groups, seed)
    adaptive = tree[1].adaptive
    at = [i for i, r in enumerate(rounds) if r.root is not None] if temperature > 0 else []
    at = spread(at, LOOSE) if adaptive else at
    roots = [root for i in at if (root := rounds[i].root) is not None]
    bounds = [bound(root, policy.draw, tree[1].nodes if adaptive else None) for root in roots]
    found = {name: None if adaptive else _rates(name, roots, policy) for name in names}
    exceeded = sum(
        any(each is not None and each[i] > most + SLACK for each in found.values()) for i, most in enumerate(bounds)
    )
    limit = torch.tensor(bounds, dtype=torch.float64)
    # The sets of coins of a round share its tree, so together they are one trial.
    above = [n for n in names if at and exceeds(torch.tensor([whole.first(n)[i] for i in at]).double(), limit, 1)]
    seconds = [r.pass_seconds for r in rounds if r.pass_seconds is not None]
    return Cell(
        drafter,
        temperature,
        tree[0],
        policy.draw.value,
        policy.shape.value,
        len(rounds),
        sum(r.nodes for r in rounds) / len(rounds),
        sum(r.depth for r in rounds) / len(rounds),
        1000 * median(seconds) if seconds else None,
        tuple(whole.line(name, names[0], found[name]) for name in names),
        mean_by_group(bounds, [groups[i] for i in at], seed=seed) if at else None,
        len(roots),
        adaptive,
        exceeded,
        tuple(above),
    )


def _rates(rule: str, roots: Sequence[Root], policy: TreePolicy) -> list[float] | None:
    """The rates at all roots; None if one of them has no formula."""
    known = [value for root in roots if (value := rate(rule, root, policy.draw)) is not None]
    return known if known and len(known) == len(roots) else None


class Sums:
    """The rounds of a cell, summarised by rule."""

    def __init__(self, rounds: Sequence[PairedRound], groups: Sequence[int], seed: int) -> None:
        self.rounds, self.groups, self.seed = rounds, groups, seed

    def kept(self, rule: str) -> list[float]:
        return [sum(r.rules[rule].kept) / len(r.rules[rule].kept) for r in self.rounds]

    def first(self, rule: str) -> list[float]:
        return [sum(k > 0 for k in r.rules[rule].kept) / len(r.rules[rule].kept) for r in self.rounds]

    def line(self, rule: str, baseline: str, expected: Sequence[float] | None) -> Line:
        tokens = [kept + 1 for kept in self.kept(rule)]
        return Line(
            rule,
            mean_by_group(tokens, self.groups, seed=self.seed),
            None if rule == baseline else self._ratio(tokens, [kept + 1 for kept in self.kept(baseline)]),
            self._ratio(self.kept(rule), [float(r.depth) for r in self.rounds]),
            mean_by_group(self.first(rule), self.groups, seed=self.seed),
            None if expected is None else sum(expected) / len(expected),
            1000 * median(r.rules[rule].seconds for r in self.rounds),
            self._share(rule),
        )

    def _ratio(self, a: Sequence[float], b: Sequence[float]) -> Ratio | None:
        """Ratio of sums by prompt, both over the same rounds."""
        return ratio_of_means(*([sum(x) for x in self._by_prompt(each)] for each in (a, b)), seed=self.seed)

    def _share(self, rule: str) -> Ratio | None:
        """The rule's median seconds over those of the target pass, by prompt."""
        pairs = [
            (median(s for s, _ in part), median(p for _, p in part))
            for each in self._by_prompt(self.rounds)
            if (part := [(r.rules[rule].seconds, r.pass_seconds) for r in each if r.pass_seconds is not None])
        ]
        return ratio_of_pairs([s for s, _ in pairs], [p for _, p in pairs], seed=self.seed)

    def _by_prompt(self, values: Sequence[T]) -> list[list[T]]:
        parts: dict[int, list[T]] = {}
        for group, value in zip(self.groups, values, strict=True):
            parts.setdefault(group, []).append(value)
        return list(parts.values())


@dataclass(frozen=True, slots=True)
class Claim:
    """Whether rules that look ahead are at or above rejection on the same trees, within the interval."""

    cells: int
    good: int
    below: tuple[str, ...]


def claim(cells: Sequence[Cell]) -> Claim:
    """A cell is below where the whole interval of one of its ratios is, or the ratio alone if there is no interval."""
    judged = good = 0
    below: list[str] = []
    for cell in cells:
        ratios = [(line.rule, line.over) for line in cell.lines if line.rule in AHEAD and line.over is not None]
        if cell.lines[0].rule != "Rejection" or not ratios:
            continue
        worse = [(rule, r) for rule, r in ratios if (r.value if r.high is None else r.high) < 1 - SLACK]
        judged, good = judged + 1, good + (not worse)
        below += [f"{rule} on {where(cell)}: {r.value:.3f}" for rule, r in worse]
    return Claim(judged, good, tuple(below))


def where(cell: Cell) -> str:
    return f"{cell.tree}, {cell.drafter}, temperature {cell.temperature:g}"


def faults(cells: Sequence[Cell]) -> list[str]:
    """Rules above their bound, which would be an error of this program, cell by cell."""
    said: list[str] = []
    for cell in cells:
        if cell.exceeded:
            said.append(f"{where(cell)}: {cell.exceeded} of {cell.roots} positions by formula")
        said += [f"{where(cell)}: {rule} accepted more than chance allows" for rule in cell.above]
    return said
