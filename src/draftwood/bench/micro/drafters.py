"""bench drafters: the host's time for one proposal of drafters that need no model, by the length of the text before it.

A text is decoded as if plainly: before each of its next tokens every drafter proposes once. The first proposal after a
prompt, in which an index may be built, is counted apart. Every repeat takes another part of the texts, and all drafters the
same one, in an order that rotates. A new drafter is one entry of DRAFTERS.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import numpy as np
import torch

from draftwood.bench.micro.target_pass import order
from draftwood.bench.statistics import percentile
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Drafter
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.retrieval.datastore import Datastore
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.drafters.retrieval.stores.store import Store
from draftwood.drafters.retrieval.suffix import Suffix
from draftwood.errors import OptionError
from draftwood.trees.chain import Chain

DEPTH, NODES = 10, 64
POLICY = Chain(Draw.GIVEN)

Say = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Sources:
    """What drafters are made from."""

    store: Path | None = None
    tokenizer: str = ""  # fingerprint of the texts' tokenizer


def _datastore(sources: Sources) -> Drafter:
    if sources.store is None:
        raise OptionError("the drafter datastore needs a store\nhint: --store STORE, from `draftwood datastore build`")
    store = Store.open(sources.store)
    store.need_tokenizer(sources.tokenizer)
    return Datastore(store)


DRAFTERS: dict[str, Callable[[Sources], Drafter]] = {
    "ngram": lambda sources: NGram(),
    "suffix": lambda sources: Suffix(mode="tree", factor=2.0),
    "datastore": _datastore,
}


class Seconds(NamedTuple):
    """One proposal: by the clock, and of this thread's own work. They differ where other processes are busy."""

    clock: float
    work: float
    nodes: int


@dataclass(frozen=True, slots=True)
class Timed:
    """Milliseconds of a proposal after `context` tokens; `nodes`: drafted on average; `drafted`: the share of
    proposals with any."""

    drafter: str
    context: int
    proposals: int
    first: float  # median of the first proposals after a prompt
    median: float
    p95: float
    work: float  # median of the thread's own time
    work_p95: float
    nodes: float
    drafted: float


def measure(
    drafters: Mapping[str, Drafter],
    text: Sequence[int],
    contexts: Sequence[int],
    *,
    vocab_size: int,
    rounds: int = 64,
    repeats: int = 4,
    say: Say = lambda done, total: None,
) -> list[Timed]:
    """Times of all drafters after all contexts: `repeats` texts of `rounds` tokens each, cut from `text`."""
    cases = [(name, context) for context in contexts for name in drafters]
    firsts: dict[Any, list[float]] = {case: [] for case in cases}
    later: dict[Any, list[Seconds]] = {case: [] for case in cases}
    windows = list(cut(text, max(contexts) + rounds + 1, repeats))
    say(0, repeats)
    for turn, window in enumerate(windows):
        for name, context in order(cases, turn):
            # The same tokens follow every context, which reaches back as far as it is long.
            own = window[max(contexts) - context :]
            first, *others = proposals(drafters[name], own, context, rounds, vocab_size)
            firsts[name, context].append(first.clock)
            later[name, context] += others
        say(turn + 1, repeats)
    return [_timed(case, firsts[case], later[case]) for case in cases]


def cut(text: Sequence[int], size: int, repeats: int) -> Iterable[Sequence[int]]:
    """Parts of a text at equal distances; they may overlap. OptionError if it is too short for one."""
    if len(text) < size:
        raise OptionError(
            f"the texts have {len(text)} tokens, {size} are needed\nhint: more --text, or shorter --contexts"
        )
    for i in range(repeats):
        at = i * (len(text) - size) // max(repeats - 1, 1)
        yield text[at : at + size]


def proposals(drafter: Drafter, text: Sequence[int], context: int, rounds: int, vocab_size: int) -> list[Seconds]:
    """One after the prompt, and one after each of the next `rounds` tokens."""
    request = Request(0, list(text[:context]), SamplingParams(), vocab_size)
    state, limit, found = drafter.init(1), Limit.of([DEPTH], [NODES]), list[Seconds]()
    for token in (None, *text[context : context + rounds]):
        if token is not None:
            request.output.append(token)
        rnd = Round(torch.zeros(1, dtype=torch.int64), torch.tensor([request.num_known]), (request,))
        base = Proposal.roots(rnd.roots())
        start, work = perf_counter(), thread_time()
        made = drafter.propose(state, rnd, base, limit, POLICY)
        spent = perf_counter() - start, thread_time() - work
        found.append(Seconds(*spent, int(made.tree.num_drafted()[0])))
    drafter.free(state, [0])
    return found


def _timed(case: tuple[str, int], firsts: list[float], later: list[Seconds]) -> Timed:
    clock, work = ([1000 * each for each in column] for column in list(zip(*later, strict=True))[:2])
    nodes = [each.nodes for each in later]
    return Timed(
        *case,
        proposals=len(later),
        first=1000 * float(np.median(firsts)),
        median=float(np.median(clock)),
        p95=percentile(clock, 95) or 0.0,
        work=float(np.median(work)),
        work_p95=percentile(work, 95) or 0.0,
        nodes=float(np.mean(nodes)),
        drafted=float(np.mean([n > 0 for n in nodes])),
    )
