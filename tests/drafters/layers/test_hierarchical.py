"""A target that drafts and reviews with its own layers writes its own text; a layer of a tentative token is run once."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from cache_ledger import first_wrong, keep_a_guess, ledger
from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import ALL, ForwardInput, ForwardOutput, LayerPlan
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Runner, TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Outcome
from draftwood.drafters.combine.vocab_trim import VocabTrim
from draftwood.drafters.layers import first_layers, hierarchical
from draftwood.drafters.layers.first_layers import FirstLayers, NodePass
from draftwood.drafters.layers.hierarchical import Hierarchical, States, exit_layers
from draftwood.drafters.layers.tentative import Tentative, entries
from draftwood.drafters.learners.plans import exits_plan
from draftwood.drafters.nets.files.store import Head
from draftwood.drafters.nets.make_drafter import two_exit_drafter
from draftwood.errors import OptionError
from draftwood.recipes import autoregressive
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder, tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from own_layers import PROMPTS, TARGETS, int8, served

DRAFT, REVIEW, MOST = 1, 3, 4  # of four layers; tentative tokens
KINDS: dict[str, Callable[[Runner, int], Hierarchical]] = {
    "shared": lambda target, size: Hierarchical(DRAFT, REVIEW, size),
    "nets": lambda target, size: two_exit_drafter(head(target), target, size),
}


def head(target: Runner, keep: Tensor | None = None) -> Head:
    """Untrained nets of which the attention says something."""
    known = torch.arange(CONFIG.vocab_size) if keep is None else keep
    places = {"draft_layers": DRAFT, "review_layers": REVIEW}
    plan = exits_plan(target, known, **places, rate=1e-3, seed=1, share=1.0, muon=False)
    assert plan.net is not None
    tensors = {name: x.detach().float().clone() for name, x in plan.net.state_dict().items()}
    noise = torch.Generator().manual_seed(2)
    for name in (name for name in tensors if name.endswith("out.weight")):
        tensors[name] = 0.05 * torch.randn(tensors[name].shape, generator=noise)
    return Head(plan.config, tensors, keep, "", {})


def sized(size: int = 2, most: int = MOST) -> Fixed:
    return Fixed(most, entries(most, size, torch.device("cpu")))


def where(name: str) -> Any:
    return as_if_on_a_device() if name == "device" else nullcontext()


@cache
def plain(name: str, temperature: float) -> list[list[int]]:
    with where(name):
        return [r.output for r in served(TARGETS[name](), None, temperature)[0]]


@pytest.mark.parametrize(("kind", "size"), [("shared", 2), ("nets", 1), ("nets", 2)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.slow
def test_the_text_is_that_of_plain_decoding(name: str, temperature: float, kind: str, size: int) -> None:
    target = TARGETS[name]()
    with where(name):
        done, seen = served(target, KINDS[kind](target, size), temperature, controller=sized(size))
    assert {r.stats.disabled for r in done} == {None}
    assert [r.output for r in done] == plain(name, temperature)
    print(name, temperature, kind, size, dict(seen.rounds))
    assert all(seen.rounds[each] for each in ("all", "some", "none")), seen.rounds


@pytest.mark.parametrize("kind", KINDS)
def test_also_where_requests_lose_their_slots_in_between(kind: str) -> None:
    target = int8()
    done, seen = served(target, KINDS[kind](target, 2), 0.0, max_cache_tokens=76, controller=sized())
    assert [r.output for r in done] == plain("int8", 0.0)
    assert sum(seen.rounds.values()) > 10 and sum(r.stats.preempted for r in done) > 0


@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.slow
def test_rejection_takes_the_same_drafts(temperature: float, kind: str, name: str) -> None:
    """Greedy texts are plain decoding's; sampled ones have their distribution, which the tests of the chain show."""
    target = TARGETS[name]()
    with where(name):
        done, seen = served(target, KINDS[kind](target, 2), temperature, Chain(), Rejection(), sized())
    assert {r.stats.disabled for r in done} == {None} and seen.rounds["some"] + seen.rounds["all"] > 10
    if not temperature:
        assert [r.output for r in done] == plain(name, 0.0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_the_exits_do_not_know_are_never_tentative(kind: str) -> None:
    """Those of the file, and of what a wrapper leaves of them."""
    target, keep = int8(), torch.arange(0, CONFIG.vocab_size, 2)
    made = two_exit_drafter(head(target, keep), target, 2) if kind == "nets" else KINDS[kind](target, 2)
    tokens: set[int] = set()

    def look(rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        tree = outcome.proposal.tree
        tokens.update(tree.tokens[:, 1:][tree.live[:, 1:]].tolist())

    third = torch.arange(0, CONFIG.vocab_size, 3)
    for temperature, policy, rule in ((0.0, Chain(Draw.GIVEN), Match()), (1.0, Chain(), Rejection())):
        recipe = Recipe(drafter=VocabTrim(made, third), policy=policy, verifier=rule, controller=sized(), watch=(look,))
        each = [SamplingParams(max_tokens=12, temperature=temperature, seed=i) for i in range(8)]
        done = serve(make_engine(target, recipe), PROMPTS[:8], each)
        assert {r.stats.disabled for r in done} == {None}
    assert tokens and tokens <= set(third.tolist()) & (set(keep.tolist()) if kind == "nets" else set(third.tolist()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_draft_at_the_end_of_the_context_is_shorter(kind: str) -> None:
    target = int8()
    parts: dict[str, Any] = {"verifier": Match(), "controller": sized(2, 6)}
    texts: list[list[list[int]]] = []
    mine = Recipe(drafter=KINDS[kind](target, 2), policy=Chain(Draw.GIVEN), **parts)
    for each in (mine, autoregressive.build(target)):
        engine = make_engine(target, each, slots=2, capacity=64)
        done = serve(engine, PROMPTS[:5], [SamplingParams(max_tokens=500)] * 5)
        assert {r.stats.disabled for r in done} == {None} and {r.finish_reason for r in done} == {"length"}
        texts.append([r.output for r in done])
    assert texts[0] == texts[1]


def test_a_policy_of_trees_gets_a_chain() -> None:
    target = int8()
    done, seen = served(target, Hierarchical(DRAFT, REVIEW), 0.0, BestFirst(2), controller=Fixed(3, 12))
    assert [r.output for r in done] == plain("int8", 0.0) and seen.rounds["some"] and seen.rounds["all"]


# --- which layers are run, and what is left


class Logits:
    """The logits of every token of a text, as the verifying pass had them, and which layers were run."""

    def __init__(self, target: Runner, drafter: Hierarchical | None) -> None:
        self.found: dict[tuple[int, int], Tensor] = {}
        recipe = autoregressive.build(target)
        if drafter is not None:
            recipe = Recipe(drafter=drafter, policy=Chain(Draw.GIVEN), verifier=Match(), controller=sized())
        self.engine = make_engine(target, replace(recipe, watch=(self,)), slots=8)
        runner: Any = self.engine.runner
        real, self.ran = runner.execute, Counter[tuple[int, int | None]]()

        def execute(x: ForwardInput, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL) -> ForwardOutput:
            self.ran[layers.start, layers.stop] += x.size
            return real(x, taps=taps, layers=layers)

        runner.execute = execute

    def __call__(self, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        assert output.token_index is not None
        for b, path in enumerate(outcome.verdict.to_host().paths):
            for depth, place in enumerate(output.token_index[b, path].tolist()):
                row = output.logits[output.logits_index[place]].clone()
                self.found[rnd.requests[b].id, rnd.host_lengths[b] - 1 + depth] = row


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.slow
def test_the_pass_over_kept_hidden_states_has_the_logits_of_a_plain_pass_bit_for_bit(
    temperature: float, kind: str
) -> None:
    target = int8()
    each = [SamplingParams(max_tokens=20, temperature=temperature, seed=i) for i in range(8)]
    runs = [Logits(target, drafter) for drafter in (KINDS[kind](target, 2), None)]
    texts = [[r.output for r in serve(run.engine, PROMPTS[:8], each)] for run in runs]
    assert texts[0] == texts[1] and runs[0].ran[REVIEW, None] > 100
    common = runs[0].found.keys() & runs[1].found.keys()
    assert len(common) >= sum(len(text) - 1 for text in texts[0])
    assert all(torch.equal(runs[0].found[key], runs[1].found[key]) for key in common)


class Chains:
    """Live and dead nodes of every chain that was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tentative = self.rejected = self.made = 0
        real = Tentative.grow

        def grow(chain: Tentative, base: Proposal) -> Proposal:
            made = real(chain, base)
            live = int(made.tree.live.sum()) - made.tree.batch
            self.tentative += live
            self.rejected += made.tree.num_nodes - 1 - live
            self.made += 1
            return made

        monkeypatch.setattr(Tentative, "grow", grow)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_of_a_tentative_token_is_run_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger of one sequence: what is rejected by a review is never run by the other layers."""
    target, chains = tiny_runner(), Chains(monkeypatch)
    run = Logits(target, KINDS[kind](target, 2))
    (done,) = serve(run.engine, [[1, 2, 3]], [SamplingParams(max_tokens=40)])
    assert done.stats.disabled is None and chains.rejected > 5 and chains.tentative > 20
    assert run.ran.pop((0, None)) <= 4, "only the prompt, and a last token that needs no draft, in one pass"
    assert run.ran == {
        (0, DRAFT): chains.made + chains.tentative + chains.rejected,
        (DRAFT, REVIEW): chains.made + chains.tentative + chains.rejected,
        (REVIEW, None): chains.made + chains.tentative,
    }


def noted(drafter: Callable[[Runner], Hierarchical]) -> tuple[Counter[str], list[Request]]:
    return ledger(drafter, sized(), lambda engine: engine.drafter_state if engine.recipe.drafter.nets else ())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_after_every_round_each_cache_holds_the_text_before_the_root(kind: str) -> None:
    found, done = noted(lambda target: KINDS[kind](target, 2))
    assert {r.stats.disabled for r in done} == {None}
    assert set(found) == {"the text"} and found["the text"] > 40


@pytest.mark.slow
def test_control_a_net_that_keeps_a_guess_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_a_guess(monkeypatch)
    found, _ = noted(lambda target: KINDS["nets"](target, 2))
    assert any("net" in each for each in found), found


def test_on_a_device_a_round_reads_once() -> None:
    for kind, policy, rule in (("nets", Chain(Draw.GIVEN), Match()), ("shared", Chain(), Rejection())):
        with as_if_on_a_device():
            target = CudaRunner(tiny_decoder())
            recipe = Recipe(drafter=KINDS[kind](target, 2), policy=policy, verifier=rule, controller=sized())
            engine = make_engine(target, recipe)
            for i in range(3):
                engine.add(Request(i, [1 + i, 2], SamplingParams(max_tokens=40, temperature=1.0), CONFIG.vocab_size))
            engine.step()
            engine.step()
            with HostReads() as reads:
                engine.step()
        assert reads.total == 1, reads.by_name


# --- twins: what would let a rejected token be seen


@dataclass(frozen=True, slots=True, eq=False)
class LeavesEntries(Hierarchical):
    """The entries of the last tentative token are those of another one, as if a rejected token had stayed in its place."""

    def propose(self, state: States, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        made = Hierarchical.propose(self, state, rnd, base, limit, policy)
        if made.started is not None and rnd.target is not None:
            other = torch.cat([made.tree.tokens[:, -1:], made.tree.tokens[:, 1:]], dim=1)
            first = FirstLayers(rnd.target, rnd, self.draft)
            FirstLayers(rnd.target, rnd, self.review, first).upto(replace(made.tree, tokens=other))
        return made


@dataclass(frozen=True, slots=True, eq=False)
class StatesOfRejected(Hierarchical):
    """The last tentative token has the hidden state of the one before it."""

    def propose(self, state: States, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        made = Hierarchical.propose(self, state, rnd, base, limit, policy)
        if made.started is None:
            return made
        hidden = made.started.hidden
        return replace(made, started=replace(made.started, hidden=torch.cat([hidden[:, :-1], hidden[:, -2:-1]], dim=1)))


@pytest.mark.parametrize("twin", [LeavesEntries, StatesOfRejected])
@pytest.mark.slow
def test_control_what_stays_of_another_token_changes_the_text(twin: type[Hierarchical]) -> None:
    done, _ = served(tiny_runner(), twin(DRAFT, REVIEW), 0.0, controller=sized())
    assert {r.stats.disabled for r in done} == {None}
    assert [r.output for r in done] != plain("float64", 0.0)
    found, _ = noted(lambda target: twin(DRAFT, REVIEW))
    where = {LeavesEntries: "k0", StatesOfRejected: f"k{REVIEW}"}  # and nothing in the layers below
    assert first_wrong(found) == {where[twin]}, found


@pytest.mark.slow
def test_control_a_rejected_token_that_later_ones_see_changes_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator rejected nodes keep their entries. If each node followed the one before it by number, and not its
    parent, the reviewer's own token would see what was rejected."""
    real = NodePass.over

    def over(*args: Any, **more: Any) -> NodePass:
        made = real(*args, **more)
        return replace(made, x=replace(made.x, parents=made.x.entries - 1))

    target = TARGETS["device"]()
    monkeypatch.setattr(first_layers.NodePass, "over", staticmethod(over))
    with as_if_on_a_device():
        done, _ = served(target, Hierarchical(DRAFT, REVIEW), 0.0, controller=sized())
    assert {r.stats.disabled for r in done} == {None}
    assert [r.output for r in done] != plain("device", 0.0)


# --- what is refused


@pytest.mark.parametrize(
    "places", [(0, 2), (2, 2), (3, 2), (-1, 1), (1, CONFIG.num_layers), (CONFIG.num_layers, CONFIG.num_layers + 1)]
)
def test_exits_that_do_not_fit_the_target_are_refused(places: tuple[int, int]) -> None:
    with pytest.raises(OptionError, match=r"do not fit a target of 4\nhint: 1 <= draft_layers < review_layers <= 3"):
        exit_layers(tiny_runner(), *places)


def test_by_default_the_exits_are_after_an_eighth_and_a_quarter_of_the_layers() -> None:
    assert exit_layers(tiny_runner(config=replace(CONFIG, num_layers=16)), None, None) == (2, 4)
    assert exit_layers(tiny_runner(), None, None) == (1, 2) and exit_layers(tiny_runner(), 2, None) == (2, 3)
    with pytest.raises(OptionError, match="per_review"):
        hierarchical.Hierarchical(1, 2, 0)
