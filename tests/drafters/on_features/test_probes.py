"""Trained probes draft from inside the verifying pass, and the text is plain decoding's, bit for bit."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from cache_ledger import ledger
from device_runs import ran
from draftwood.controllers.fixed import Fixed
from draftwood.core import score as scoring
from draftwood.core.host_tree import HostTree
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Inputs, Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.recipe import Loop, Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.tree import PROBE, SCORED
from draftwood.drafters.combine.first_of import FirstOf
from draftwood.drafters.learners.at_probes import AtProbes
from draftwood.drafters.learners.plans import float_layers
from draftwood.drafters.nets.make_drafter import probes_model
from draftwood.drafters.on_features.probes import TrainedProbes
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.engine import step
from draftwood.errors import DrafterError, OptionError
from draftwood.recipes import autoregressive
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.contracts import check_drafter, toy_round
from draftwood.testing.exact import Free
from draftwood.testing.host_reads import as_if_on_a_device
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder, tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.train.loop.teacher import Teacher
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from own_layers import PROMPTS, TARGETS, int8, served
from trained_probes import STAGES, head, model

CHAIN = Chain(Draw.GIVEN)
SHAPES = {"chain": (2, None, CHAIN), "tree": (3, 8, BestFirst())}  # depth, nodes, policy


def probes(name: str = "int8", depth: int = STAGES, **options: Any) -> TrainedProbes:
    return TrainedProbes(model(name), depth, **options)


def sized(drafter: TrainedProbes) -> Fixed:
    return Fixed(drafter.levels, drafter.size)


def texts(done: list[Any]) -> list[list[int]]:
    assert {r.stats.disabled for r in done} == {None}
    return [r.output for r in done]


@pytest.mark.parametrize("everywhere", [False, True], ids=["alternating", "everywhere"])
@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.slow
def test_the_text_is_that_of_plain_decoding(name: str, temperature: float, shape: str, everywhere: bool) -> None:
    target, (depth, nodes, policy) = TARGETS[name](), SHAPES[shape]
    drafter = probes(name, depth, nodes=nodes, everywhere=everywhere)
    with as_if_on_a_device() if name == "device" else nullcontext():
        done, seen = served(target, drafter, temperature, policy, controller=sized(drafter))
        plain, _ = served(target, None, temperature)
    assert texts(done) == texts(plain)
    print(name, temperature, shape, "everywhere" if everywhere else "alternating", dict(seen.rounds))
    assert all(seen.rounds[each] for each in ("all", "some", "none")), seen.rounds


@pytest.mark.one_in(2)
@pytest.mark.parametrize("everywhere", [False, True], ids=["alternating", "everywhere"])
def test_also_where_requests_lose_their_slots_in_between(everywhere: bool) -> None:
    target, drafter = int8(), probes(depth=1 if everywhere else 3, everywhere=everywhere)
    done, seen = served(target, drafter, 0.0, controller=sized(drafter), max_cache_tokens=60, chunk=4)
    assert texts(done) == texts(served(target, None, 0.0)[0])
    assert sum(seen.rounds.values()) > 10 and sum(r.stats.preempted for r in done) > 0


@pytest.mark.one_in(7)
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (3, 4), (4, 7), (5, 30), (30, 5), (6, 15)], ids=str)
@pytest.mark.parametrize("everywhere", [False, True], ids=["alternating", "everywhere"])
def test_also_where_there_is_no_room_for_all_of_it(everywhere: bool, size: tuple[int, int]) -> None:
    """What does not fit is left out by the drafter: a draft that is too large would be refused."""
    target = int8()
    done, seen = served(target, probes(everywhere=everywhere, nodes=5), 0.0, BestFirst(), controller=Fixed(*size))
    assert texts(done) == texts(served(target, None, 0.0)[0])
    assert seen.rounds.total() > 0


def test_at_the_end_of_the_context_drafts_and_branches_are_shorter() -> None:
    target, found = int8(), list[list[list[int]]]()
    drafter = probes(everywhere=True)
    drafted = Recipe(drafter=drafter, policy=CHAIN, verifier=Match(), controller=sized(drafter))
    for each in (drafted, autoregressive.build(target)):
        engine = make_engine(target, each, slots=2, capacity=64)
        done = serve(engine, PROMPTS[:5], [SamplingParams(max_tokens=500)] * 5)
        assert {r.finish_reason for r in done} == {"length"}
        found.append(texts(done))
    assert found[0] == found[1]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3, "frequency_penalty": 0.3},
        {"grammar": lambda tokens: torch.arange(61) % 2 == len(tokens) % 2},
    ],
    ids=["penalties", "grammar"],
)
def test_options_act_along_the_paths_of_a_draft(options: dict[str, Any]) -> None:
    target, drafter = int8(), probes(everywhere=True, nodes=6)
    each = [SamplingParams(max_tokens=12, temperature=1.0, seed=i, **options) for i in range(len(PROMPTS))]
    recipe = Recipe(drafter=drafter, policy=BestFirst(), verifier=Match(), controller=sized(drafter))
    found, plain = (serve(make_engine(target, r), PROMPTS, each) for r in (recipe, autoregressive.build(target)))
    assert texts(found) == texts(plain) and sum(r.stats.rounds_all + r.stats.rounds_some for r in found) > 0


@pytest.mark.one_in(5)
@pytest.mark.parametrize("everywhere", [False, True], ids=["alternating", "everywhere"])
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0}], ids=str)
@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_device_drafts_the_same_and_reads_once(shape: str, options: dict[str, Any], everywhere: bool) -> None:
    depth, nodes, policy = SHAPES[shape]
    made = tiny_decoder()
    each = [SamplingParams(max_tokens=10, seed=i, **options) for i in range(8)]

    def build(target: Any) -> Recipe:
        drafter = TrainedProbes(probes_model(head("float64"), target), depth, nodes, everywhere)
        return Recipe(drafter=drafter, policy=policy, verifier=Match(), controller=sized(drafter))

    here, there = (ran(target, build, PROMPTS[:8], each) for target in (CpuRunner(made), CudaRunner(made)))
    assert here.texts == there.texts and here.accepted == there.accepted and there.disabled == {None}
    assert there.read_once(), there.by_round()
    assert sum(there.accepted[:2]) > 0


def test_the_contract_of_drafters_holds() -> None:
    for everywhere in (False, True):
        drafter = TrainedProbes(
            probes_model(random_head("probes", tiny_runner()), tiny_runner()), 2, everywhere=everywhere
        )
        check_drafter(drafter, CHAIN, CONFIG.vocab_size)


def test_beside_another_drafter_it_drafts_where_it_had_probes() -> None:
    target, drafter = int8(), probes()
    both = FirstOf((NGram(n_min=1),), drafter)
    done, _ = served(target, both, 0.0, controller=sized(drafter))
    assert texts(done) == texts(served(target, None, 0.0)[0])
    assert {source for r in done for source in r.sources} >= {0, 1}


def test_the_overlapped_loop_writes_the_same_text() -> None:
    target, drafter = int8(), probes()
    recipe = Recipe(drafter=drafter, policy=CHAIN, verifier=Match(), controller=sized(drafter))
    params = [SamplingParams(max_tokens=9 + i % 5, seed=i, temperature=0.0) for i in range(len(PROMPTS))]
    done = serve(make_engine(target, replace(recipe, loop=Loop.OVERLAPPED)), PROMPTS, params)
    assert texts(done) == texts(served(target, None, 0.0)[0])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("everywhere", [False, True], ids=["alternating", "everywhere"])
def test_what_is_kept_of_a_round_is_the_branch_behind_the_last_accepted_token(everywhere: bool) -> None:
    """As training sees that branch, from the text alone; and the cache holds the text before the root, no probe."""
    target, drafter = tiny_runner(), probes("float64", everywhere=everywhere)
    learner = AtProbes(drafter.model.net, torch.arange(CONFIG.vocab_size), float_layers(target))
    recipe = Recipe(drafter=drafter, policy=CHAIN, verifier=Match(), controller=sized(drafter))
    engine = make_engine(target, recipe, slots=1)
    request = serve_one(engine, PROMPTS[3])
    looked = accepted = 0
    while engine.has_work:
        before = len(request.output)
        engine.step()
        if request.finished:
            break
        assert engine.runner.length(0) == request.num_known - 1
        accepted += len(request.output) - before - 1
        if 0 not in engine.drafter_state.ready or request.remaining <= 2 * STAGES:  # the last branches are shorter
            continue
        looked += 1
        assert int(engine.drafter_state.levels[0]) == STAGES
        ids = torch.tensor([request.known])
        live = torch.ones_like(ids, dtype=torch.bool)
        shown = Teacher(target).show(ids, live, live, learner.needs.taps, 0)
        right = learner.behind(shown, torch.tensor([request.num_known - 2])).detach()[0]
        assert (engine.drafter_state.features[0, 1:] - right).abs().max() < 1e-9
    assert looked > 5 and accepted > 0


def serve_one(engine: Any, prompt: list[int]) -> Any:
    from draftwood.core.request import Request

    request = Request(0, list(prompt), SamplingParams(max_tokens=50), engine.info.vocab_size)
    engine.add(request)
    return request


def test_branches_stand_behind_the_root_or_behind_every_node() -> None:
    made = probes("float64", everywhere=True)
    tree = Proposal.roots(torch.tensor([9])).with_given([[1, 2]], [[0, 1]], [[-1.0, -2.0]])
    whole = made._with_probes(tree, [_size(2)], torch.device("cpu"))
    assert whole.tree.parents[0].tolist() == [-1, 0, 1, 0, 3, 1, 5, 2, 7]
    assert whole.tree.role[0].tolist() == [SCORED] * 3 + [PROBE] * 6
    assert whole.inputs is not None and whole.inputs.index[0].tolist() == [-1, -1, -1, 0, 1, 0, 1, 0, 1]
    alone = replace(made, everywhere=False)._with_probes(tree, [_size(2)], torch.device("cpu"))
    assert alone.tree.parents[0].tolist() == [-1, 0, 1, 0, 3] and torch.equal(alone.tree.live, alone.tree.live | True)


def _size(count: int) -> Any:
    from draftwood.drafters.on_features.probes import _Size

    return _Size(probes=count)


# --- twins: what would change the text is seen


def leave_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry of a probe is kept in place of the root's."""
    real = step._kept

    def kept(chains: Any, report: Any) -> Any:
        entries, tokens = real(chains, report)
        for b, inside in enumerate(report.in_pass):
            root = len(chains[b].tokens) - 1
            if inside > report.drafted[b]:
                entries[b] = [root + inside if entry == root else entry for entry in entries[b]]
        return entries, tokens

    monkeypatch.setattr(step, "_kept", kept)


def show_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafted tokens see a probe: they follow it instead of their parent."""
    real = scoring.assemble_lists

    def assembled(chains: Any, tree: HostTree, device: Any, own: list[list[int]] | None = None) -> Any:
        if own is None:
            return real(chains, tree, device, own)
        parents = [list(each) for each in tree.parents]
        for b, index in enumerate(own):
            first = {parents[b][i]: i for i, x in enumerate(index) if x == 0}
            for i, x in enumerate(index):
                if i and x < 0 and tree.scored[b][i] and parents[b][i] in first:
                    parents[b][i] = first[parents[b][i]]
        return real(chains, replace(tree, parents=parents), device, own)

    monkeypatch.setattr(scoring, "assemble_lists", assembled)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("fault", "said"), [(leave_probes, "another text"), (show_probes, "entries of another text in k1")]
)
def test_control_a_probe_that_later_tokens_see_changes_the_text(
    fault: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe's entry stands for another text; one of a token that saw a probe is wrong behind the first layer."""
    target, drafter = tiny_runner(), probes("float64", everywhere=True, nodes=8)
    right = texts(served(target, None, 0.0)[0])
    assert texts(served(target, drafter, 0.0, BestFirst(), controller=sized(drafter))[0]) == right
    assert set(ledger(lambda _: drafter, sized(drafter), policy=BestFirst())[0]) == {"the text"}
    fault(monkeypatch)
    assert texts(served(target, drafter, 0.0, BestFirst(), controller=sized(drafter))[0]) != right
    found, _ = ledger(lambda _: drafter, sized(drafter), policy=BestFirst())
    assert set(found) - {"the text"} == {said}, found


@dataclass(frozen=True, slots=True, eq=False)
class Confused(TrainedProbes):
    """Twin: the root enters by the vector of a probe."""

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        made = TrainedProbes.propose(self, state, rnd, base, limit, policy)
        if made.inputs is None:
            return made
        index = made.inputs.index.clone()
        index[:, 0] = 0
        return replace(made, inputs=Inputs(made.inputs.vectors, index))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", list(TARGETS))
def test_a_vector_at_an_ordinary_token_disables_the_drafter_and_leaves_the_text(name: str) -> None:
    target, wrong = TARGETS[name](), Confused(model(name), STAGES)
    with as_if_on_a_device() if name == "device" else nullcontext():
        done, _ = served(target, wrong, 0.0, controller=sized(wrong))
        plain, _ = served(target, None, 0.0)
    assert [r.output for r in done] == texts(plain)
    assert {r.stats.disabled for r in done} == {"a node with an input of its own is no probe"}


# --- where it has to pay


class Steep(Free):
    """Every further token of a pass costs so many times as much as the first one."""

    def __init__(self, token: float) -> None:
        self.token = token

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        return 1.0 + self.token * (tokens - 1)


@pytest.mark.parametrize(("token", "everywhere", "pays"), [(0.01, False, True), (0.2, False, False), (0.01, True, True),
                                                           (0.1, False, True), (0.1, True, False)])  # fmt: skip
def test_probes_are_in_the_pass_where_they_pay(token: float, everywhere: bool, pays: bool) -> None:
    """A round of 15 nodes, or two of 3 nodes, for 0.8 tokens more."""
    drafter, rnd = (
        probes("float64", everywhere=everywhere, worth=(0.8, 0.0)),
        toy_round([[7, 1, 2]], 61, temperature=0.0),
    )
    limit = Limit.of([drafter.levels], [drafter.size], cost_model=Steep(token))
    tree = drafter.propose(drafter.init(1), rnd, Proposal.roots(rnd.roots()), limit, CHAIN).tree
    assert (tree.num_nodes > 1) == pays
    sampled = toy_round([[7, 1, 2]], 61, temperature=1.0)
    other = drafter.propose(drafter.init(1), sampled, Proposal.roots(sampled.roots()), limit, CHAIN).tree
    assert other.num_nodes == 1, "sampled texts have another expectation"
    with pytest.raises(DrafterError, match="cost model"):
        drafter.propose(drafter.init(1), rnd, Proposal.roots(rnd.roots()), Limit.of([3], [9]), CHAIN)


def test_rounds_teach_what_drafts_are_worth() -> None:
    """A drafter that is always wrong is left out after some rounds, and tried again later."""
    target = int8()
    drafter = TrainedProbes(probes_model(random_head("probes", target), target), 2, worth=(1.5, 1.5))
    found: list[bool] = []

    def watch(rnd: Round, outcome: Any, output: Any) -> None:
        found.append(outcome.proposal.tree.num_nodes > 1)

    recipe = Recipe(drafter=drafter, policy=CHAIN, verifier=Match(), controller=Costly(), watch=(watch,))
    done = serve(make_engine(target, recipe, slots=1, capacity=256), [[1, 2, 3]], [SamplingParams(max_tokens=200)])
    assert texts(done) and any(found[:4]) and not all(found[-40:])


class Costly(Fixed):
    """A controller whose rounds of two nodes take one and a half times as long as plain ones."""

    def __init__(self) -> None:
        super().__init__(2, 2)

    def plan(self, state: None, rnd: Round, load: Any) -> Limit:
        return Limit.of([2] * rnd.batch, [2] * rnd.batch, rnd.device, cost_model=Steep(0.25))


# --- bad input


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"depth": STAGES + 1}, f"depth cannot be {STAGES + 1}: the weights draft {STAGES} levels at most"),
        ({"depth": 0}, "depth"),
        ({"depth": 3, "nodes": 2}, "nodes"),
    ],
)
def test_a_senseless_size_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=f"(?s){said}.*hint:"):
        TrainedProbes(model("float64"), **options)
