"""bench verifiers: the time of each rule for a tree of 64 nodes, and of the target pass that scores the same tree.

The distributions are synthetic: as sharp as those of small chat models, with the overlap of a trained drafter. The time of
a rule depends on the accepted length and on how many tokens its distributions hold, not on the tokens. The target pass is a
real one. Every repeat runs everything once, in an order that rotates and reverses; ratios are taken within a repeat. Passes
of many sequences take seconds and run in every third repeat only; the others use the last time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from draftwood.bench.micro.target_pass import Stage, clock, flat, order, spread
from draftwood.bench.statistics import Ratio, mean, ratio_of_pairs
from draftwood.bench.study.rules.known_distributions import drafted, known_rules, round_of, scored
from draftwood.core.host_tree import HostTree
from draftwood.core.legal_draws import RULES, Draw, Shape
from draftwood.core.model_info import CPU
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy, Verifier
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.probs import SamplingKernels
from draftwood.core.sampling.sampler import Sampler
from draftwood.core.score import KnownTokens, assemble_lists
from draftwood.core.tree import TokenTree
from draftwood.models.loading.load import Loaded
from draftwood.runners.open import runner_of
from draftwood.trees.chain import Chain
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static
from draftwood.verifiers.selection import Selection

NODES = 64  # the root included
PASS = "target pass"
TOP_P = 0.95
DISTRIBUTIONS = 128  # different pairs of distributions; nodes use them in turn
WARM_UP = 1  # repeats that do not count
SEEDS = 4  # rounds of coins that repeats go through
FALL = (1.2, 2.4)  # probability falls with the rank to this power, from flat to sharp distributions
APART = 0.8  # standard deviation of the draft's logits around the target's
MANY, SELDOM = 8, 3  # passes of more sequences are timed in every third repeat
SHARE, LINEAR = 0.1, 8.0  # goals: at most this of the pass; from 4 sequences to 32 better than linear
ALL = ", all tokens"  # of drafts without top-p
LP = "Selection lp"  # the same rule with its linear programme, which no goal is set for

Say = Callable[[int, int], None]
Key = tuple[str, str, int]  # rule, draft, sequences


@dataclass(frozen=True, slots=True)
class Draft:
    """A kind of tree that fills the nodes."""

    policy: TreePolicy
    depth: int

    @property
    def name(self) -> str:
        return f"{self.policy.draw.value}, {self.policy.shape.value}"


# 63 nodes: 7 + 14 + 14 + 14 + 14, and 63 x 1. Equal independent draws share a node, so there are more of them: 7 + 28 + 56 +
# 56 + 56, and 10 x 7. The number of nodes is random: trees are drawn until one has nearly NODES of them.
DRAFTS = (
    Draft(Static((7, 2, 1, 1, 1), Draw.DISTINCT), 5),
    Draft(Static((7, 4, 2, 1, 1), Draw.IID), 5),
    Draft(Paths(10), 7),
    Draft(Chain(Draw.IID), NODES - 1),
)
DRAWS, FULL, TRIES = 256, 0.9, 40  # draws at most; what counts as full; how many trees are drawn for it


@dataclass(frozen=True, slots=True)
class Timed:
    """One rule on one kind of tree, `batch` sequences: milliseconds, share of the target pass, tokens accepted of each."""

    rule: str
    draft: str
    batch: int
    nodes: float  # of a tree, on average
    ms: float
    low: float
    high: float
    share: Ratio | None = None
    kept: float | None = None


@dataclass(frozen=True, slots=True)
class Growth:
    """The time of the larger batch over that of the smaller one."""

    rule: str
    draft: str
    batches: tuple[int, int]
    ratio: Ratio | None


@dataclass(frozen=True, slots=True)
class Measured:
    rows: list[Timed]
    growth: list[Growth]
    absent: list[str]  # rules of the table of pairings that are not built in
    distributions: dict[str, float]


def measure(
    loaded: Loaded,
    batches: Sequence[int],
    *,
    vocab_size: int | None = None,
    context: int = 128,
    repeats: int = 6,
    top_p: float = TOP_P,
    rules: dict[str, Verifier | None] | None = None,
    say: Say = lambda done, total: None,
) -> Measured:
    """Times of all rules on all trees they are exact for. `vocab_size`: the model's own if left out."""
    found = known_rules() if rules is None else rules
    tokens = loaded.info.vocab_size if vocab_size is None else vocab_size
    stage = Stage(runner_of(loaded), [context] * max(batches), NODES)
    kernels = stage.target.execute(flat(0, context, stage.tokens(1), [-1], stage.device, head=True)).kernels
    stage.target.commit([0], [[]], [[]])
    world, least = World(tokens, top_p, kernels, device=stage.device), min(batches)
    able = {name: rule for name, rule in found.items() if rule is not None}
    case = Case(stage, context, {}, {}, {})
    for draft in DRAFTS:
        for batch in batches:
            case.add(world, draft, batch, able)
    whole = World(tokens, 1.0, kernels, device=stage.device)
    for draft in DRAFTS:  # every token has a probability: only for one size, which is enough to compare
        case.add(whole, draft, least, able, ALL)
    if rules is None and find_spec("scipy") is not None:
        case.add(world, DRAFTS[1], least, {LP: Selection(solver="lp")})
    times = _times(case.runs, repeats, say, stage.device)
    rows = [timed(key, case.nodes[key[1:]], times, mean(case.kept.get(key, []))) for key in case.runs]
    return Measured(rows, grown(times), [name for name, rule in found.items() if rule is None], world.describe())


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that is timed, by rule, draft and sequences."""

    stage: Stage
    context: int
    runs: dict[Key, Callable[[], Any]]
    kept: dict[Key, list[float]]
    nodes: dict[tuple[str, int], float]

    def add(self, world: "World", draft: Draft, batch: int, rules: dict[str, Verifier], note: str = "") -> None:
        """Those of the rules that are exact for this kind of tree, and the pass over it."""
        fit = {name: rule for name, rule in rules.items() if legal(name, draft)}
        if not fit:
            return
        made, name = world.proposal(draft, batch), draft.name + note
        self.nodes[name, batch] = float(made.tree.live.sum(1).float().mean())
        self.runs.setdefault((PASS, name, batch), pass_over(self.stage, made.tree, self.context))
        for rule, judge in fit.items():
            key = (rule, name, batch)
            self.runs[key] = world.judge(judge, made, self.kept.setdefault(key, []))


def _times(runs: dict[Key, Callable[[], Any]], repeats: int, say: Say, device: torch.device) -> dict[Key, list[float]]:
    """Seconds of every repeat."""
    times: dict[Key, list[float]] = {key: [] for key in runs}
    say(0, repeats)
    for turn in range(-WARM_UP, repeats):
        for key in order(list(runs), turn):
            slow = key[0] == PASS and key[2] > MANY
            if slow and turn < 0:
                continue  # a pass of seconds needs no warm-up
            seconds = times[key][-1] if slow and turn % SELDOM else clock(runs[key], device)
            if turn >= 0:
                times[key].append(seconds)
        if turn >= 0:
            say(turn + 1, repeats)
    return times


def legal(rule: str, draft: Draft) -> bool:
    """Whether the rule is exact for the draft. Match, which is exact for every draft, is timed on trees only."""
    made = (draft.policy.draw, draft.policy.shape)
    return made in RULES[rule.split()[0]] and (rule != "Match" or draft.policy.shape is Shape.TREE)


def timed(key: Key, nodes: float, times: dict[Key, list[float]], kept: float | None) -> Timed:
    rule, draft, batch = key
    ms = {name: 1000 * seconds for name, seconds in spread(times[key]).items()}
    share = None if rule == PASS else ratio_of_pairs(times[key], times[PASS, draft, batch])
    return Timed(rule, draft, batch, nodes, ms["median"], ms["low"], ms["high"], share, kept)


def grown(times: dict[Key, list[float]]) -> list[Growth]:
    """From the second largest batch to the largest."""
    sizes = sorted({batch for _, _, batch in times})[-2:]
    if len(sizes) < 2:
        return []
    small, large = sizes
    kinds = dict.fromkeys((rule, draft) for rule, draft, batch in times if batch == large)
    return [Growth(*kind, (small, large), ratio_of_pairs(times[*kind, large], times[*kind, small])) for kind in kinds]


def verdicts(found: Measured) -> list[str]:
    """One line for each goal: whether it is reached, and the rules that miss it."""
    checked = [row for row in found.rows if row.share is not None and row.rule != LP and not row.draft.endswith(ALL)]
    beyond = [f"{r.rule} on {r.draft}, {r.batch} sequences" for r in checked if r.share and r.share.value > SHARE]
    goals = {f"every rule takes less than {SHARE:.0%} of the pass": beyond}
    grown = [g for g in found.growth if g.rule != PASS and g.ratio is not None]
    if grown and grown[0].batches == (4, 32):
        slow = [f"{g.rule} on {g.draft}" for g in grown if g.ratio and g.ratio.value >= LINEAR]
        goals[f"32 sequences take less than {LINEAR:.0f} times as long as 4"] = slow
    return [
        f"not reached: {goal}; beyond it: {'; '.join(who)}" if who else f"reached: {goal}"
        for goal, who in goals.items()
    ]


class World:
    """Pairs of distributions, which nodes use in turn, and drafts and rounds over them."""

    def __init__(
        self,
        vocab_size: int,
        top_p: float,
        kernels: SamplingKernels | None = None,
        seed: int = 0,
        device: torch.device = CPU,
    ) -> None:
        self.vocab_size, self.top_p, self.kernels, self.device = vocab_size, top_p, kernels, device
        noise = torch.Generator().manual_seed(seed)
        rank = torch.arange(1, vocab_size + 1, dtype=torch.float32).log()
        fall = torch.empty(DISTRIBUTIONS, 1).uniform_(*FALL, generator=noise)
        p = -fall * rank + 0.5 * torch.randn(DISTRIBUTIONS, vocab_size, generator=noise)
        q = p + APART * torch.randn(DISTRIBUTIONS, vocab_size, generator=noise)
        places = torch.randperm(vocab_size, generator=noise)  # probable tokens have any id
        self.logits, draft = (x[:, places].contiguous().to(device) for x in (p, q))
        # The same options for all.
        sampler = Sampler([SamplingParams(temperature=1.0, top_p=top_p)], device)
        self.q = DraftProbs(torch.cat([sampler.dense(row[None, None])[0] for row in draft]))
        self.p = torch.cat([sampler.dense(row[None, None])[0] for row in self.logits])
        self.best = None if kernels is None else self.logits.argmax(-1)

    def place(self, sequence: int, nodes: Tensor) -> Tensor:
        """Which pair of distributions a node has."""
        return (nodes * 5 + sequence * 37) % DISTRIBUTIONS

    def proposal(self, draft: Draft, batch: int) -> Proposal:
        """Sequences are drafted one by one and share the stored distributions: copies for 32 would fill the memory."""
        return stacked([self._drafted(draft, b).compact(NODES) for b in range(batch)])

    def _drafted(self, draft: Draft, sequence: int) -> Proposal:
        def distributions(frontier: Tensor) -> DraftProbs:
            return DraftProbs(self.q.prob[self.place(sequence, frontier.flatten())])

        found: dict[int, Proposal] = {}  # by number of nodes
        for turn in range(TRIES):
            rnd = self.round(1, sequence + 1 + 1000 * turn)
            grown = drafted(draft.policy, rnd, draft.depth, DRAWS, distributions)
            found[int(grown.tree.live.sum())] = grown
            if max((size for size in found if size <= NODES), default=0) >= FULL * NODES:
                break
        grown = found[max((size for size in found if size <= NODES), default=min(found))]
        place = self.place(sequence, torch.arange(grown.tree.num_nodes, device=self.device))[None]
        return replace(grown, q=self.q, q_index=torch.where(grown.q_indices() >= 0, place, -1))

    def judge(self, rule: Verifier, proposal: Proposal, kept: list[float]) -> Callable[[], None]:
        """A run of the rule; each is the next round of coins."""
        place = self.places(proposal)
        rounds = cycle([self.round(proposal.tree.batch, 1000 + s) for s in range(SEEDS)])

        def run() -> None:
            with torch.inference_mode():  # as in the engine
                # The backend has found the greatest logit in the target pass, which is timed on its own.
                target = scored(self.logits, place, proposal.tree, rnd := next(rounds), self.kernels, self.best)
                verdict = rule.verify(proposal, target, rnd)
            kept.append(float(verdict.count.float().mean()))

        return run

    def places(self, proposal: Proposal) -> Tensor:
        """Which pair of distributions each node has: where a q was drawn from, its own p."""
        nodes, index = torch.arange(proposal.tree.num_nodes, device=self.device), proposal.q_indices()
        return torch.where(index >= 0, index, torch.stack([self.place(b, nodes) for b in range(len(index))]))

    def round(self, batch: int, seed: int) -> Round:
        return round_of(batch, self.vocab_size, seed=seed, top_p=self.top_p, device=self.device)

    def describe(self) -> dict[str, float]:
        """Entropy, size and overlap of the distributions."""
        entropy = -(self.p * self.p.clamp_min(1e-30).log()).sum(1)
        return {
            "vocabulary": float(self.vocab_size),
            "top_p": self.top_p,
            "tokens_in_top_p": float((self.p > 0).sum(1).float().mean()),
            "entropy_nats": float(entropy.mean()),
            "overlap": float(torch.minimum(self.p, self.q.prob).sum(1).mean()),
        }


def stacked(proposals: Sequence[Proposal]) -> Proposal:
    """Proposals of one sequence each, over the same stored distributions and with as many nodes, as one."""
    names = [each.name for each in fields(TokenTree)]
    tree = TokenTree(**{name: torch.cat([getattr(x.tree, name) for x in proposals]) for name in names})
    return replace(proposals[0], tree=tree, q_index=torch.cat([x.q_indices() for x in proposals]))


def pass_over(stage: Stage, tree: TokenTree, context: int) -> Callable[[], None]:
    """The target pass that scores these trees, each after a context of its own."""
    roots = [KnownTokens(b, context, stage.tokens(1)) for b in range(tree.batch)]
    tree = replace(tree, tokens=tree.tokens % stage.target.info.vocab_size)  # a pass costs the same for all ids
    x = assemble_lists(roots, HostTree.of(tree), stage.device)[0]

    def run() -> None:
        none = [[] for _ in roots]
        stage.target.execute(x)
        stage.target.commit(range(len(roots)), none, none)

    return run
