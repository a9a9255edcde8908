"""bench serve: tokens per second and latency of several ways to draft, against the number of requests in flight.

One process, one engine for each case, requests added to it as a server does: whenever one ends the next begins. Speed is
measured while that many are in flight; the last ones of a block run out uncounted. Answers have different lengths: equal
ones would begin and end together where nothing is drafted, and read all their prompts in one pass.

Cases take turns every few rounds, each with the same requests and a clock of its own, so that a slow moment of the machine
affects all of them and ratios are of pairs.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from time import perf_counter
from typing import Any

from draftwood import recipes
from draftwood.bench.micro.target_pass import order
from draftwood.bench.statistics import Ratio, ratio_of_pairs
from draftwood.controllers import budget, goodput
from draftwood.controllers.fixed import Fixed
from draftwood.core.config import EngineConfig
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded
from draftwood.runners.open import runner_of
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

PLAIN = "depth 0"
TURN = 0.05  # seconds of rounds before the next case has its turn
SPARE = 64  # cache entries of a slot beyond prompt and answer, for drafts

Prompt = Sequence[int]
Say = Callable[[int, int], None]


def cases(loaded: Loaded, depths: Sequence[int], inner: str, names: Sequence[str]) -> dict[str, Recipe | str]:
    """Chains of fixed depths of the drafter of `inner`, and recipes by name. Depth 0 is always there: plain decoding."""
    target = runner_of(loaded)
    drafter = recipes.drafter(inner, target) if any(depths) else None
    found: dict[str, Recipe | str] = {PLAIN: "autoregressive"}
    for depth in depths:
        if depth and drafter is not None:
            found[f"depth {depth}"] = Recipe(
                drafter=drafter, policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(depth)
            )
    return {**found, **{name: name for name in names}}


@dataclass(slots=True)
class Block:
    """The same requests in one case; nothing yet at the end of a turn that was not the last. `tokens`: emitted within
    `seconds`, while the given number was in flight."""

    seconds: float = 0.0
    tokens: int = 0
    latencies: list[float] = field(default_factory=list[float])
    texts: list[list[int]] = field(default_factory=list[list[int]])
    passes: int = 0
    drafted: int = 0
    saved_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Served:
    """One case with so many requests in flight. Latencies in seconds. `speed`: tokens a second over those of plain decoding,
    the median of paired blocks. `identical`: of the requests, those with plain decoding's text."""

    case: str
    in_flight: int
    requests: int
    tokens_per_second: float
    latency: float
    tokens_per_pass: float
    drafted_per_pass: float
    speed: Ratio | None
    identical: int
    saved_ms: float  # of a request, as the engine counted it
    calibration_error: float | None


@dataclass(slots=True)
class Server:
    """The engine of one case, and what it served."""

    name: str
    llm: LLM
    params: SamplingParams
    blocks: list[Block] = field(default_factory=list[Block])

    def run(self, prompts: Sequence[Prompt], in_flight: int) -> Iterator[Block]:
        """All prompts, so many at a time. A turn of some rounds for each `next`; the last one yields the block. The clock
        stands still between turns."""
        engine = self.llm.engine
        engine.runner.forget()  # a prompt that is still in the cache would not be read again
        waiting = [self.llm.request(prompt, params) for prompt, params in _of_own_lengths(self.params, prompts)]
        everyone, began, ended = list(waiting), dict[int, float](), dict[int, float]()
        live: list[Request] = []
        others, start = 0.0, perf_counter()  # seconds that others had, begin
        turn, seconds, tokens = start, 0.0, 0
        while waiting or live:
            while waiting and len(live) < in_flight:
                request = waiting.pop(0)
                began[request.id] = perf_counter() - others
                engine.add(request)
                live.append(request)
            if len(live) < in_flight and not seconds:
                seconds, tokens = perf_counter() - others - start, sum(len(r.output) for r in everyone)
            for request in engine.step():
                ended[request.id] = perf_counter() - others
                live.remove(request)
            now = perf_counter()
            if now - turn >= TURN and (waiting or live):
                yield Block()
                turn = perf_counter()
                others += turn - now
        seconds = seconds or perf_counter() - others - start
        yield Block(
            seconds,
            tokens or sum(len(r.output) for r in everyone),
            [ended[r.id] - began[r.id] for r in everyone],
            [list(r.output) for r in everyone],
            sum(r.stats.target_passes for r in everyone),
            sum(r.stats.draft_tokens for r in everyone),
            fmean(r.stats.saved_ms or 0.0 for r in everyone),
        )

    def served(self, in_flight: int, plain: "Server") -> Served:
        blocks = self.blocks
        tokens, seconds = sum(b.tokens for b in blocks), sum(b.seconds for b in blocks)
        written = sum(len(text) for b in blocks for text in b.texts)
        passes = max(sum(b.passes for b in blocks), 1)
        rates, theirs = ([b.tokens / b.seconds for b in each.blocks] for each in (self, plain))
        same = [a == b for mine, other in zip(blocks, plain.blocks, strict=True) for a, b in _pairs(mine, other)]
        return Served(
            self.name,
            in_flight,
            len(same),
            tokens / seconds,
            fmean(x for b in blocks for x in b.latencies),
            written / passes,
            sum(b.drafted for b in blocks) / passes,
            None if self is plain else ratio_of_pairs(rates, theirs),
            sum(same),
            fmean(b.saved_ms for b in blocks),
            _calibration_error(self.llm.engine.controller_state),
        )


def _pairs(a: Block, b: Block) -> Any:
    return zip(a.texts, b.texts, strict=True)


def _calibration_error(state: Any) -> float | None:
    return state.calibration_error if isinstance(state, goodput.State | budget.State) else None


def measure(
    loaded: Loaded,
    ways: dict[str, Recipe | str],
    prompts: Sequence[Prompt],
    params: SamplingParams,
    in_flight: int,
    repeats: int,
    block: int,
    say: Say = lambda done, total: None,
) -> list[Served]:
    """`repeats` blocks of `block` requests for each case, after one that warms up."""
    longest = max(map(len, prompts)) + params.max_tokens + SPARE
    config = EngineConfig(max_num_seqs=in_flight, max_model_len=min(longest, loaded.info.max_positions))
    servers = [Server(name, LLM(loaded, recipe, config=config), params) for name, recipe in ways.items()]
    _in_turns(servers, 0, _part(prompts, 0, block), in_flight)
    for turn in range(repeats):
        say(turn, repeats)
        found = _in_turns(servers, turn, _part(prompts, 1 + turn, block), in_flight)
        for server in servers:
            server.blocks.append(found[server.name])
    say(repeats, repeats)
    (plain,) = (server for server in servers if server.name == PLAIN)
    return [server.served(in_flight, plain) for server in servers]


def _of_own_lengths(params: SamplingParams, prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, SamplingParams]]:
    """From half to one and a half of the tokens, evenly spread over any few requests in a row. A prompt that comes again is
    another tenant's, so that it is read again."""
    seen: Counter[tuple[int, ...]] = Counter()
    for i, prompt in enumerate(prompts):
        most = max(1, round(params.max_tokens * (0.5 + i * 0.618 % 1)))
        yield prompt, replace(params, max_tokens=most, tenant=f"{seen[tuple(prompt)]}")
        seen[tuple(prompt)] += 1


def _in_turns(servers: Sequence[Server], turn: int, prompts: Sequence[Prompt], in_flight: int) -> dict[str, Block]:
    """The block of every case. Whoever is done early leaves the others to go on in turns."""
    runs = {server.name: server.run(prompts, in_flight) for server in servers}
    blocks: dict[str, Block] = {}
    while runs:
        for name in order(list(runs), turn):
            block = next(runs[name])
            if block.texts:
                blocks[name] = block
                del runs[name]
        turn += 1
    return blocks


def _part(prompts: Sequence[Prompt], turn: int, block: int) -> list[Prompt]:
    """So many prompts, going on where the last turn ended."""
    return [prompts[(turn * block + i) % len(prompts)] for i in range(block)]
