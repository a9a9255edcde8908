"""One round: what it costs beside the model, and nodes that are in its pass and never accepted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from draftwood.core import host
from draftwood.core.forward import ForwardInput, ForwardOutput
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Runner, TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.scored import Scored
from draftwood.core.tree import PROBE, SCORED
from draftwood.core.verdict import Outcome
from draftwood.models import stacked_attention as stacked
from draftwood.recipes import autoregressive
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.contracts import Always
from draftwood.testing.host_reads import HostReads
from draftwood.testing.parts.oracle_drafter import Replay
from draftwood.testing.parts.tiny import tiny_decoder, tiny_runner
from draftwood.testing.parts.token_pool import PoolDrafter, PoolRule
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rows", [2, 40])
def test_plain_round_asks_the_device_a_few_times_whatever_the_number_of_rows(rows, temperature, monkeypatch):
    # Roots and choice. (With a large vocabulary also whether the best tokens hold enough mass for top-p.)
    monkeypatch.setattr(stacked, "stacking_pays", lambda segments: True)
    monkeypatch.setattr(host, "on_host", lambda device: False)  # a processor reads more often, and never waits for it
    model = tiny_runner()
    engine = make_engine(model, autoregressive.build(model), slots=rows)
    for i in range(rows):
        engine.add(
            Request(
                i, [1 + i % 7, 2], SamplingParams(temperature=temperature, top_p=0.98, seed=i), model.info.vocab_size
            )
        )
    engine.step()
    with HostReads() as reads:
        engine.step()
    assert reads.total == 2, reads.by_name


# --- probes

PROMPTS = [[1 + i, 2, 3] for i in range(8)]
WAYS = {
    "greedy": SamplingParams(max_tokens=20),
    "sampled": SamplingParams(temperature=1.0, seed=3, max_tokens=20),
    "penalised": SamplingParams(temperature=1.0, seed=3, max_tokens=20, repetition_penalty=1.3, frequency_penalty=0.4),
}


@dataclass(frozen=True, slots=True)
class Probing(Replay):
    """Drafts a chain of wrong tokens and, as probes, the three right ones. Its state: what the target said after the probes,
    by request and length of its answer."""

    chain: int = 2

    def init(self, slots: int) -> dict[tuple[int, int], list[int]]:
        return {}

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        tokens: list[list[int]] = []
        parents: list[list[int]] = []
        roles: list[list[int]] = []
        for request, deep in zip(rnd.requests, limit.depths, strict=True):
            whole = self._next(tuple(request.prompt), len(request.output), min(deep, 3))
            first = [(t + 1) % self.vocab_size for t in whole[:1]] + whole[1:2]
            first = first[: self.chain]
            tokens.append(first + whole)
            parents.append(
                [*range(len(first)), *([0, *range(len(first) + 1, len(first) + len(whole))] if whole else [])]
            )
            roles.append([SCORED] * len(first) + [PROBE] * len(whole))
        score = [[-float(i) for i in range(len(each))] for each in tokens]
        return base.with_given(tokens, parents, score, role=roles)

    def commit(self, state: Any, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        best = Scored(output, outcome.proposal.tree, rnd).best().tolist()
        probes = (outcome.proposal.tree.live & (outcome.proposal.tree.role == PROBE)).tolist()
        for request, said, on in zip(rnd.requests, best, probes, strict=True):
            state[request.id, len(request.output)] = [t for t, here in zip(said, on, strict=True) if here]


class Keeping(CpuRunner):
    """A runner that keeps the entry of a probe instead of the last one of the text."""

    def execute(self, x: ForwardInput, **options: Any) -> ForwardOutput:
        columns = x.to_host()
        self.staged = dict(zip(columns.slots, columns.entries, strict=True))  # the last of each slot
        return super().execute(x, **options)

    def commit(self, slots: Sequence[int], entries: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]) -> None:
        both = zip(slots, entries, strict=True)
        spoilt = [[*own[:-1], own[-1] + (own[-1] < self.staged[slot])] for slot, own in both]
        super().commit(slots, spoilt, tokens)


def probed(target: Runner, way: str, chain: int, **room: Any) -> tuple[list[list[int]], list[Request], Any]:
    """The texts of plain decoding; requests that were probed, and their engine. After every round the entries of each slot
    are compared with its text."""
    each = [WAYS[way]] * len(PROMPTS)
    plain = [r.output for r in serve(make_engine(target, autoregressive.build(target)), PROMPTS, each)]
    answers = {tuple(p): text for p, text in zip(PROMPTS, plain, strict=True)}
    drafter = Probing(answers, target.info.vocab_size, spoil=1000, chain=chain)
    parts = {"policy": Chain(Draw.GIVEN), "verifier": PoolRule(Match()), "controller": Always(3, 5)}
    engine = make_engine(target, Recipe(drafter=PoolDrafter(drafter), **parts), **room)
    return plain, serve(engine, PROMPTS, each), engine


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("room", [{}, {"max_cache_tokens": 90}], ids=["roomy", "preempting"])
def test_probes_are_in_the_pass_and_neither_in_the_text_nor_in_the_cache(way: str, room: dict[str, Any]) -> None:
    plain, done, engine = probed(tiny_runner(2), way, 2, **room)
    assert [r.output for r in done] == plain
    assert {r.stats.disabled for r in done} == {None}
    assert sum(r.stats.rounds_all + r.stats.rounds_some for r in done) == 0, "right tokens were probes only"
    assert bool(sum(r.stats.preempted for r in done)) == bool(room)
    drafted = sum(r.stats.draft_tokens for r in done)
    assert drafted and engine.totals.tokens > 2 * drafted, "probes count as tokens of the pass, not as drafted ones"
    if way == "greedy" and not room:  # what the target said after a right probe is what it says there
        said = engine.drafter_state.inner
        for (i, length), found in said.items():
            right = plain[i][length + 1 :]  # unknown behind the last token; the first token of an answer is spoilt
            assert not length or [a for a, _ in zip(found, right, strict=False)] == right[: len(found)]


def test_rounds_of_probes_alone_count_as_undrafted() -> None:
    plain, done, engine = probed(tiny_runner(2), "sampled", 0)
    assert [r.output for r in done] == plain
    assert {(r.stats.rounds_all, r.stats.rounds_some, r.stats.rounds_none) for r in done} == {(0, 0, 0)}
    assert engine.totals.tokens > 3 * sum(r.stats.target_passes for r in done)


@pytest.mark.parametrize("way", ["greedy", "sampled"])
def test_an_entry_of_a_probe_that_stays_in_the_cache_is_found(way: str) -> None:
    plain, done, _ = probed(Keeping(tiny_decoder(2)), way, 0)
    assert all("the pool of slot" in (r.stats.disabled or "") for r in done)
    assert [r.output for r in done] != plain
