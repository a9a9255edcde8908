"""Recorded trees cut to fewer nodes or levels: what each recorded round would have accepted of a smaller tree.

For one round the answer is exact: a policy that cuts by score keeps the best nodes, and the text says which of them are
accepted. A smaller tree would have ended rounds earlier, and later ones would have begun at positions where no tree was
recorded. So tokens per pass is the mean over the recorded rounds, an estimate.
"""

from dataclasses import dataclass, replace
from math import inf

from draftwood.bench.trace.costs import Costs
from draftwood.bench.trace.records import RoundRecord, SequenceRecord
from draftwood.bench.trace.summary import Summary, counted, priced
from draftwood.bench.trace.trace import MATCH, Trace, walk
from draftwood.errors import OptionError, TraceError
from draftwood.option_parsing import pairs


@dataclass(frozen=True, slots=True)
class Cut:
    """At most so many nodes, and levels, of each tree."""

    nodes: float = inf
    depth: float = inf

    def __str__(self) -> str:
        return ":".join(f"{name}={n:g}" for name, n in (("nodes", self.nodes), ("depth", self.depth)) if n < inf)


def cut_of(text: str) -> Cut:
    """nodes=4:depth=2"""
    found = pairs(text.split(":"), "--cut")
    if not found.keys() <= {"nodes", "depth"} or not all(value.isdecimal() for value in found.values()):
        raise OptionError(f"--cut cannot be {text!r}\nhint: for example nodes=4, or nodes=4:depth=2")
    return Cut(**{name: int(value) for name, value in found.items()})


def cut_rounds(trace: Trace, cut: Cut) -> list[RoundRecord]:
    """The recorded rounds with smaller trees."""
    if trace.header.rule != MATCH:
        raise TraceError(
            f"trees cannot be cut: {trace.header.rule} decides by more than the text which nodes are accepted\n"
            "hint: record with a recipe of the rule match"
        )
    return [_cut(each, cut) for each in trace.rounds]


def cut_trees(trace: Trace, cut: Cut, costs: Costs) -> Summary:
    """Expected figures of a whole run with smaller trees."""
    rounds = cut_rounds(trace, cut)
    name = f"{trace.header.spelt}, trees cut to {cut}"
    found = priced(name, "estimated from the recorded trees", rounds, costs)
    passes, tokens, _, _ = counted(rounds)
    # As many tokens as were recorded, at the cut trees' tokens per pass.
    more = trace.num_tokens / tokens if tokens else 1.0
    return replace(
        found,
        passes=passes * more,
        tokens=trace.num_tokens,
        rounds=tuple(more * each for each in found.rounds),
        drafted=more * found.drafted,
    )


def _cut(rnd: RoundRecord, cut: Cut) -> RoundRecord:
    sequences = tuple(_smaller(each, cut) for each in rnd.sequences)
    fewer = sum(len(old.tokens) - len(new.tokens) for old, new in zip(rnd.sequences, sequences, strict=True))
    nodes, levels = rnd.times.draft_nodes - fewer, max((max(each.depths()) for each in sequences), default=0)
    passes = min(rnd.times.draft_passes, levels)
    times = replace(rnd.times, tokens=rnd.times.tokens - fewer, draft_nodes=nodes, draft_passes=passes)
    return RoundRecord(times, sequences)


def _smaller(each: SequenceRecord, cut: Cut) -> SequenceRecord:
    """The best nodes by score, the older first among equals; of them those that are not too deep."""
    depth = each.depths()
    best = sorted(range(1, len(depth)), key=lambda i: (-each.scores[i - 1], i))
    kept = {i for place, i in enumerate(best) if place < cut.nodes and depth[i] <= cut.depth}
    order, number = list[int](), {0: 0}
    for i in range(1, len(depth)):
        if i in kept and each.parents[i - 1] in number:  # rounding may have made a child look better than its parent
            order.append(i)
            number[i] = len(order)
    tokens, parents = [each.tokens[i - 1] for i in order], [number[each.parents[i - 1]] for i in order]
    path = walk(tokens, parents, each.emitted)
    return SequenceRecord(
        each.request,
        each.length,
        tokens,
        parents,
        [each.sources[i - 1] for i in order] if len(each.sources) == len(each.tokens) else each.sources[: len(order)],
        [each.scores[i - 1] for i in order],
        path,
        each.emitted[: len(path) + 1],
        min(each.kept, len(path) + 1),
    )
