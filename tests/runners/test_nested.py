"""A model whose tokens leave early: its caches are those of the whole model, and it drafts without a trace."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import FINAL, CacheSpec, ForwardInput, ForwardOutput, HostInput, LayerPlan
from draftwood.core.legal_draws import Draw
from draftwood.core.model_info import ModelInfo
from draftwood.core.protocols import Runner, TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Outcome
from draftwood.drafters.combine.vocab_trim import VocabTrim
from draftwood.drafters.draft_model import DraftModel
from draftwood.errors import EngineError, ModelError, OptionError
from draftwood.runners import nested
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.exits import Exits
from draftwood.runners.nested import NestedRunner
from draftwood.testing.contracts import Always, check_drafter
from draftwood.testing.exact import Leaf, joint_error, leaves
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.table_model import Conditional, TableModel, near, random_probs
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from own_layers import PROMPTS, TARGETS, int8, served

LAYERS, MIXED = (1, 3, 4), (0.25, 0.25, 0.0)  # thresholds at which some tokens leave at each exit
CHAIN, TREE = Chain(Draw.GIVEN), Static((2, 2, 1), Draw.GIVEN)


def exits(*thresholds: float) -> Exits:
    return Exits(LAYERS, thresholds or MIXED)


def drafter(model: Runner, *thresholds: float, kind: type[NestedRunner] = NestedRunner) -> DraftModel:
    """The target as its own draft, so that its last exit is always right and the others often wrong."""
    return DraftModel(kind(model, exits(*thresholds)))


def test_parts_begin_a_text_together_although_one_has_given_up_what_another_kept() -> None:
    runner: Any = NestedRunner(int8(), exits()).open(2, 256)
    text = [i % 7 for i in range(80)]

    def read(slot: int, first: int) -> None:
        size = len(text) - first
        at = list(range(size))
        columns = HostInput(text[first:], [slot] * size, at, [i - 1 for i in at])
        runner.reserve([slot], [size])
        runner.execute(ForwardInput.of(columns, [first + i for i in at], [size - 1], torch.device("cpu")))
        runner.commit([slot], [at], [text[first:]])

    runner.admit(0, [*text, 0])
    read(0, 0)
    runner.free([0])
    runner._parts[0].cache.blocks.give_up()  # the end of the text
    assert runner.admit(1, [*text, 0]) == 64
    runner.check_integrity()
    read(1, 64)
    runner.check_integrity()


def test_its_first_part_holds_what_others_store_for_every_token() -> None:
    own = CacheSpec("own", 1, 2)
    runner = NestedRunner(tiny_runner(), exits()).open(2, 32, pools=(own,))
    slots, entries = torch.tensor([0, 1]), torch.tensor([3, 5])
    runner.write_pool("own", slots, entries, torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]))
    assert runner.read_pool("own", slots, entries).tolist() == [[[1.0, 2.0]], [[3.0, 4.0]]]


class Watch:
    """Looks at the drafter's runner after every round of an engine that `engine` starts. `faults`: what does not hold."""

    def __init__(self, target: Runner, made: DraftModel, policy: TreePolicy = CHAIN, **more: Any) -> None:
        parts: dict[str, Any] = {"verifier": Match(), "controller": Fixed(3, 8)}
        recipe = Recipe(drafter=made, policy=policy, watch=(self,), **parts)
        self.engine = make_engine(target, recipe, slots=8, chunk=5, **more)
        self.faults: list[str] = []
        self.waited = self.most = 0

    @property
    def runner(self) -> Any:
        return self.engine.drafter_state.runner

    def run(self, temperature: float = 0.0) -> list[Request]:
        params = [SamplingParams(max_tokens=9 + i % 5, temperature=temperature, seed=i) for i in range(len(PROMPTS))]
        done = serve(self.engine, PROMPTS, params)
        assert {r.stats.disabled for r in done} == {None}
        return done

    def __call__(self, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        try:
            for slot, request in zip(rnd.host_slots, rnd.requests, strict=True):
                self.look(slot, request)
            self.runner.check_integrity()
        except Exception as error:  # the engine would go on without a watcher that fails
            self.faults.append(f"{type(error).__name__}: {error}")

    def look(self, slot: int, request: Request) -> None:
        seen, waiting = self.runner.length(slot), self.runner._waiting[slot]
        self.waited += bool(waiting.text)
        self.most = max(self.most, len(waiting.text))
        for part, each in enumerate(self.runner._parts):
            have = each.length(slot)
            behind = [token.id for token in waiting.text if len(token.entries) <= part]
            if each.cache.text(slot) + behind != request.known[:seen]:
                self.faults.append(f"part {part}: {have} entries and {behind} waiting are not the {seen} tokens seen")


class Compare(Watch):
    """Also compares every entry and every waiting hidden state with a plain pass of the whole model over the same text."""

    def __init__(self, target: Runner, made: DraftModel, exact: bool, policy: TreePolicy = CHAIN) -> None:
        super().__init__(target, made, policy)
        self.target, self.exact, self.compared = target, exact, 0

    def look(self, slot: int, request: Request) -> None:
        super().look(slot, request)
        seen = self.runner.length(slot)
        ids, index = torch.tensor(request.known[:seen], dtype=torch.int64), torch.arange(seen)
        fresh: Any = self.target.open(1, 256)
        fresh.admit(0, [])
        x = ForwardInput(ids, index * 0, index, index, index - 1, index[:0])
        taps = fresh.execute(x, taps=frozenset(LAYERS)).features
        asked = self.runner._asked.layers
        for part, (first, last) in enumerate(zip((0, *asked), asked, strict=False)):
            cache, have = self.runner._parts[part].cache, self.runner._parts[part].length(slot)
            for name in (f"{kind}{layer}" for layer in range(first, last) for kind in "kv"):
                self._same(name, cache.store(name)[slot, :, :have], fresh.cache.store(name)[0, :, :have])
                self.compared += have
        for token in self.runner._waiting[slot].text:
            if token.position >= seen:
                self.faults.append(f"state {token.position} is not that of a plain pass: the text ends before it")
                continue
            self._same(f"state {token.position}", token.hidden, taps[asked[len(token.entries) - 1]][token.position])

    def _same(self, what: str, mine: torch.Tensor, theirs: torch.Tensor) -> None:
        same = torch.equal(mine, theirs) if self.exact else torch.allclose(mine, theirs, atol=1e-11)
        if not same:
            self.faults.append(f"{what} is not that of a plain pass")


# --- the text


@pytest.mark.parametrize("policy", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.slow
def test_the_text_is_that_of_plain_decoding(name: str, temperature: float, policy: TreePolicy) -> None:
    target = TARGETS[name]()
    with as_if_on_a_device() if name == "device" else nullcontext():
        done, seen = served(target, drafter(target), temperature, policy, controller=Fixed(3, 8))
        plain, _ = served(target, None, temperature)
    assert {r.stats.disabled for r in done} == {None}
    assert [r.output for r in done] == [r.output for r in plain]
    print(name, temperature, policy, dict(seen.rounds))
    assert all(seen.rounds[each] for each in ("all", "some", "none")), seen.rounds


def test_also_where_requests_lose_their_slots_in_between() -> None:
    target = int8()
    done, seen = served(target, drafter(target), 0.0, max_cache_tokens=60)
    assert [r.output for r in done] == [r.output for r in served(target, None, 0.0)[0]]
    assert sum(seen.rounds.values()) > 10 and sum(r.stats.preempted for r in done) > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rejection_takes_the_same_drafts(temperature: float) -> None:
    target = int8()
    done, seen = served(target, drafter(target), temperature, Chain(), Rejection())
    assert {r.stats.disabled for r in done} == {None} and seen.rounds["some"] + seen.rounds["all"]
    if not temperature:
        assert [r.output for r in done] == [r.output for r in served(target, None, 0.0)[0]]


def test_the_contract_of_drafters_holds() -> None:
    for policy in (Chain(), CHAIN, Static((2, 2))):
        check_drafter(drafter(tiny_runner()), policy, CONFIG.vocab_size)


def test_embeddings_are_those_of_the_whole_model() -> None:
    target, ids = tiny_runner(), torch.tensor([3, 0, 7])
    assert torch.equal(NestedRunner(target, exits()).embed(ids), target.embed(ids))


def test_a_trimmed_vocabulary_runs_all_layers() -> None:
    """Its rows of the head are multiplied outside, where no exit can ask."""
    target = int8()
    wrapped = VocabTrim(drafter(target), torch.arange(0, CONFIG.vocab_size, 2))
    done, seen = served(target, wrapped, 0.0)
    assert [r.output for r in done] == [r.output for r in served(target, None, 0.0)[0]] and seen.rounds["all"]


# --- the caches


@pytest.mark.one_in(5)
@pytest.mark.parametrize("policy", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("name", ["float64", "int8"])
def test_entries_and_waiting_states_are_those_of_a_plain_pass_over_the_text(name: str, policy: TreePolicy) -> None:
    """Bit for bit in int8. Entries of every part and the tokens that wait before it are all tokens seen."""
    target = TARGETS[name]()
    watch = Compare(target, drafter(target), exact=name == "int8", policy=policy)
    watch.run()
    assert not watch.faults, watch.faults[:3]
    assert watch.waited > 20 and watch.compared > 1000


@pytest.mark.parametrize("thresholds", [(1.0, 1.0, 0.0), (1 - 1e-9, 1 - 1e-9, 0.0)], ids=["not asked", "never sure"])
@pytest.mark.parametrize("name", ["float64", "int8"])
@pytest.mark.slow
def test_a_model_that_no_token_leaves_early_is_the_whole_model_bit_for_bit(
    name: str, thresholds: tuple[float, ...]
) -> None:
    """Also where every part is a pass of its own and the head is multiplied at each exit."""
    target = TARGETS[name]()
    mine, plain = Watch(target, drafter(target, *thresholds)), Watch(target, drafter(target))
    plain.engine = make_engine(
        target, Recipe(drafter=DraftModel(target), policy=CHAIN, verifier=Match(), controller=Fixed(3, 8)), chunk=5
    )
    assert len(mine.runner._parts) == (1 if thresholds[0] == 1 else 3)
    params = [SamplingParams(max_tokens=9 + i % 5, temperature=1.0, seed=i) for i in range(len(PROMPTS))]
    both = mine.engine, plain.engine
    made = [[Request(i, list(p), params[i], CONFIG.vocab_size) for i, p in enumerate(PROMPTS)] for _ in both]
    for engine, requests in zip(both, made, strict=True):
        for each in requests:
            engine.add(each)
    compared = 0
    while mine.engine.has_work:
        for engine in both:
            engine.step()
        theirs = plain.runner
        for slot in mine.engine.scheduler.running:
            have = theirs.length(slot)
            assert [part.length(slot) for part in mine.runner._parts] == [have] * len(mine.runner._parts)
            ends = mine.runner._asked.layers
            for part, (first, last) in enumerate(zip((0, *ends), ends, strict=False)):
                for store in (f"{kind}{layer}" for layer in range(first, last) for kind in "kv"):
                    own = mine.runner._parts[part].cache.store(store)[slot, :, :have]
                    assert torch.equal(own, theirs.cache.store(store)[slot, :, :have])
            compared += have
    assert [r.output for r in made[0]] == [r.output for r in made[1]] and compared > 300
    assert [r.stats.accepted for r in made[0]] == [r.stats.accepted for r in made[1]]
    assert not mine.waited and not mine.faults


def test_control_a_model_that_is_left_early_accepts_less() -> None:
    target = int8()
    deep, mixed = (Watch(target, drafter(target, *each)).run() for each in ((1.0, 1.0, 0.0), MIXED))
    assert sum(sum(r.stats.accepted) for r in mixed) < sum(sum(r.stats.accepted) for r in deep)


class LeavesRejected(NestedRunner):
    """Twin: one rejected token of every round stays where it waits."""

    def commit(self, slots: Sequence[int], entries: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]) -> None:
        stale = [
            [t for e, t in self._waiting[slot].staged.items() if e not in kept and len(t.entries) < len(self._parts)]
            for slot, kept in zip(slots, entries, strict=True)
        ]
        super().commit(slots, entries, tokens)
        for slot, left in zip(slots, stale, strict=True):
            text = self._waiting[slot].text
            for token in left[:1]:
                token.entries, token.parent = [-1] * len(token.entries), text[-1] if text else None
                text.append(token)


def test_control_a_rejected_token_that_goes_on_waiting_is_found() -> None:
    """The text does not depend on a draft, so only looking at the queues shows it."""
    target = int8()
    watch = Compare(target, drafter(target, kind=LeavesRejected), exact=True)
    done = watch.run()
    assert [r.output for r in done] == [r.output for r in Watch(target, drafter(target)).run()]
    assert any("tokens wait before it" in fault for fault in watch.faults)
    assert any("not the" in fault for fault in watch.faults)
    assert any("is not that of a plain pass" in fault for fault in watch.faults)


def test_not_more_tokens_wait_than_a_pass_may_take_along(monkeypatch: pytest.MonkeyPatch) -> None:
    target = int8()
    free = Watch(target, drafter(target, 0.0, 0.0, 0.0))
    free.run()
    monkeypatch.setattr(nested, "LONGEST", 4)
    bound = Compare(target, drafter(target, 0.0, 0.0, 0.0), exact=True)
    bound.run()
    assert not bound.faults and bound.most <= 4 + 4 < free.most, "a draft's own tokens on top"


def test_a_text_that_comes_again_starts_from_what_the_last_part_has() -> None:
    """Hidden states are not shared, so no part may have more of a new text than the last one."""
    runner = NestedRunner(tiny_runner(), exits(0.0, 0.0, 0.0)).open(2, 64)
    runner.admit(0, [1])
    for i, token in enumerate([1, 2, 3, 4]):  # one by one: each leaves at the first exit
        one, at = torch.tensor([token]), torch.tensor([i])
        runner.execute(ForwardInput(one, at * 0, at, at * 0, at * 0 - 1, at * 0))
        runner.commit([0], [[0]], [[token]])
    assert [part.length(0) for part in runner._parts] == [4, 0, 0]
    runner.check_integrity()
    assert runner.admit(1, [1, 2, 3, 9]) == 0 and runner.length(1) == 0
    runner.free([0, 1])
    runner.check_integrity()


# --- a device


def test_on_a_device_one_pass_runs_every_exit_of_every_token_and_nothing_is_read() -> None:
    target = TARGETS["device"]()
    ids = torch.tensor([3, 5, 7])
    at = torch.arange(3)
    columns = HostInput(ids.tolist(), [0] * 3, [0, 1, 2], [-1, 0, 1])
    x = ForwardInput.of(columns, at.tolist(), [1, 2], ids.device)
    with as_if_on_a_device():
        runner = NestedRunner(target, exits()).open(1, 64)
        runner.admit(0, [])
        with HostReads() as reads:
            output = runner.execute(x)
    assert reads.total == 0, reads.by_name
    plain: Any = tiny_runner().open(1, 64)
    plain.admit(0, [])
    taps = plain.execute(x, taps=frozenset(LAYERS)).features
    said = [plain.head(taps[layers][1:]) for layers in LAYERS]
    taken = exits().first(said).tolist()
    for row, (token, exit) in enumerate(zip((1, 2), taken, strict=True)):
        torch.testing.assert_close(output.logits[output.logits_index[token]], said[exit][row])
        torch.testing.assert_close(output.hidden[token], taps[LAYERS[exit]][token])


# --- exactness: q is the distribution of the exit that a token took


class Tables:
    """A model whose layers are tables: after `count` layers the distribution is that of the table `count` - 1."""

    def __init__(self, vocab_size: int, tables: Sequence[Conditional]) -> None:
        self.vocab_size, self.tables = vocab_size, tables
        self.whole = TableModel(vocab_size, tables[-1])
        self.cache_specs, self.forward = self.whole.cache_specs, self.whole.forward
        self.embed, self.head = self.whole.embed, self.whole.head

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            vocab_size=self.vocab_size,
            num_layers=len(self.tables),
            hidden_size=1,
            max_positions=64,
            dtype=torch.float64,
        )

    def first_layers(self, count: int) -> TableModel:
        return TableModel(self.vocab_size, self.tables[count - 1])


class OfAnotherExit(DraftModel):
    """Twin: reports the distributions of the last exit, whichever one was taken."""

    def propose(self, state: Any, rnd: Any, base: Any, limit: Any, policy: Any) -> Any:
        made: Any = super().propose(state, rnd, base, limit, policy)
        model: Any = self.model
        tree = made.tree
        for b, request in enumerate(rnd.requests):
            for node, row in enumerate(made.q_indices()[b].tolist()):
                if row >= 0:
                    path = [t for t in tree.path_tokens(torch.tensor([[node]] * tree.batch))[b, 0].tolist() if t >= 0]
                    text = (*request.known, *path)
                    made.q.prob[row] = torch.tensor(model.whole.model.tables[-1](text), dtype=torch.float64)
        return made


def enumerated(
    kind: type[DraftModel], policy: TreePolicy, vocab_size: int, tokens: int | None
) -> tuple[list[Leaf], Any]:
    p = random_probs(vocab_size, 1)
    tables = [near(p, vocab_size, seed, 0.7) for seed in (11, 12, 13)]
    sure = {2: 0.6, 3: 0.5}[vocab_size]
    taken: set[int] = set()

    class Counting(NestedRunner):
        def _run(self, part: int, *rest: Any) -> Any:
            taken.add(part)
            return super()._run(part, *rest)

    def recipe() -> Recipe:
        model: Any = CpuRunner(Tables(vocab_size, tables))
        made = kind(Counting(model, Exits((1, 2, 3), (0.6, sure, 0.0))))
        return Recipe(drafter=made, policy=policy, verifier=Rejection(), controller=Always(2, 4))

    found = leaves(TableModel(vocab_size, p), recipe, tokens=tokens)
    assert taken == {1, 2}, "every part was run"
    return found, p


@pytest.mark.parametrize("policy", [Chain(), Static((2, 1)), Static((2, 1), Draw.IID)], ids=str)
def test_rejection_emits_the_targets_distribution(policy: TreePolicy) -> None:
    """A table sees its own cache, so a token that was not caught up with would show too."""
    found, p = enumerated(DraftModel, policy, 3, None)
    assert sum(leaf.prob for leaf in found) == pytest.approx(1, abs=1e-12)
    assert joint_error(found, p, 3, 3) < 1e-12


def test_so_it_does_over_several_rounds() -> None:
    found, p = enumerated(DraftModel, Chain(), 2, 4)
    assert {len(leaf.output) for leaf in found} == {4} and joint_error(found, p, 2, 4) < 1e-12


def test_control_the_distribution_of_another_exit_biases() -> None:
    found, p = enumerated(OfAnotherExit, Chain(), 3, None)
    assert joint_error(found, p, 3, 3) > 1e-3


# --- what cannot be


def test_what_a_model_with_exits_cannot_do_is_refused() -> None:
    whole = tiny_runner()
    with pytest.raises(OptionError, match=r"do not fit a model of 4 layers\nhint: the last exit"):
        NestedRunner(whole, Exits((1, 3), (0.5, 0.0)))
    with pytest.raises(ModelError, match="all of its layers or none"):
        NestedRunner(CpuRunner(TableModel(3, random_probs(3, 1))), Exits((1,), (0.0,)))
    made = NestedRunner(whole, exits())
    with pytest.raises(EngineError, match=r"no cache\nhint: runner.open"):
        made.length(0)
    with pytest.raises(ModelError, match="decides by itself"):
        made.first_layers(2)
    opened = made.open(1, 16)
    opened.admit(0, [])
    at = torch.zeros(1, dtype=torch.int64)
    x = ForwardInput(at, at, at, at, at - 1, at)
    for more in (dict[str, Any](taps=frozenset({FINAL})), dict[str, Any](layers=LayerPlan(stop=2))):
        with pytest.raises(EngineError, match="no taps"):
            opened.execute(x, **more)
