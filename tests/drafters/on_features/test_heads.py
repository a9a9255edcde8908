"""Heads on one feature never change the text, run as they were trained, and read the root's own feature or none."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import FINAL
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.learners.parallel import outputs
from draftwood.drafters.nets.files.build import net
from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.make_drafter import heads_drafter, levels
from draftwood.drafters.nets.runners.heads_model import StageModel
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.on_features.heads import Heads
from draftwood.errors import OptionError
from draftwood.testing import exact
from draftwood.testing.contracts import Always, check_drafter, toy_round
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.train.loop.teacher import Teacher
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

KINDS = ["medusa", "hydra", "mlp"]
PROMPTS = [[5, 7, 1, 3], list(range(1, 40)), [9, 9, 2], [5, 7, 1, 3, 8, 8], [4]]
STAGES = 3
KEEP = torch.arange(0, 60, 2)


def heads(kind: str, target: Any, **more: Any) -> Heads:
    return heads_drafter(random_head(kind, target, rows=len(KEEP), stages=STAGES, **more), target)


def run(target: Any, drafter: Any, policy: Any, *, rule: Any = None, temperature: float = 0.0, **options: Any) -> Any:
    recipe = Recipe(drafter=drafter, policy=policy, verifier=rule or Match(), controller=Fixed(depth=5, nodes=12))
    recipe.check(target)
    params = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=20 + i, **options) for i in range(len(PROMPTS))
    ]
    requests = serve(make_engine(target, recipe, slots=3, chunk=16), PROMPTS, params)
    assert not any(r.stats.disabled for r in requests)
    return requests


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_random_weights_leave_the_text_alone(target: Any, kind: str, temperature: float) -> None:
    plain = run(target, Nothing(), Chain(Draw.GIVEN), temperature=temperature)
    for policy in (Chain(Draw.GIVEN), Static((3, 2, 1, 1), Draw.GIVEN), BestFirst(4)):
        drafted = run(target, heads(kind, target), policy, temperature=temperature)
        assert [r.output for r in drafted] == [r.output for r in plain]
        assert all(r.stats.draft_tokens > 0 for r in drafted)


@pytest.mark.parametrize("kind", ["medusa", *(pytest.param(k, marks=pytest.mark.slow) for k in ("hydra", "mlp"))])
def test_options_along_a_path_leave_the_text_alone(target: Any, kind: str) -> None:
    options = {"repetition_penalty": 1.5, "logit_bias": {2: 1.0, 4: -1.0}, "min_tokens": 5}
    plain = run(target, Nothing(), Chain(Draw.GIVEN), temperature=0.8, **options)
    drafted = run(target, heads(kind, target), BestFirst(4), temperature=0.8, **options)
    assert [r.output for r in drafted] == [r.output for r in plain]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_drawn_chains_and_trees_run_under_rejection(target: Any, kind: str) -> None:
    for policy in (Chain(), Static((2, 2, 1)), Static((2, 2), Draw.IID)):
        answers = run(target, heads(kind, target), policy, rule=Rejection(), temperature=1.0)
        assert all(r.stats.draft_tokens > 0 for r in answers)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        pytest.param(Chain(), "medusa", id="chain-medusa"),
        pytest.param(Static((2, 1)), "hydra", id="tree-hydra"),
        pytest.param(Static((2, 1)), "mlp", id="tree-mlp"),
        pytest.param(Chain(), "hydra", id="chain-hydra", marks=pytest.mark.slow),
        pytest.param(Chain(), "mlp", id="chain-mlp", marks=pytest.mark.slow),
        pytest.param(Static((2, 1)), "medusa", id="tree-medusa", marks=pytest.mark.slow),
    ],
)
def test_the_emitted_distribution_is_the_targets(kind: str, policy: Any) -> None:
    """I2: every outcome of whole requests, against plain decoding. The first round has no feature; the later ones draft."""
    target = tiny_runner(config=replace(CONFIG, vocab_size=3, num_layers=1))
    drafter = heads_drafter(random_head(kind, target, rows=2), target)
    plain = Recipe(drafter=Nothing(), policy=Chain(), verifier=Match(), controller=Always(0, 0))
    drafting = Recipe(drafter=drafter, policy=policy, verifier=Rejection(), controller=Always(2, 4))
    found = exact.leaves(target.model, lambda: drafting, tokens=4)
    assert max(leaf.accepted for leaf in found) == 2
    fast, slow = exact.probs_of(found), exact.probs_of(exact.leaves(target.model, lambda: plain, tokens=4))
    assert max(abs(fast.get(z, 0) - slow.get(z, 0)) for z in {*fast, *slow}) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", [Chain(), Static((3, 2, 2))], ids=["chain", "tree"])
def test_distributions_along_any_path_are_those_that_were_trained(target: Any, kind: str, policy: Any) -> None:
    drafter, rnd, state = heads(kind, target, tied=kind == "mlp", scale_input=kind == "mlp"), *fresh_round(target)
    proposal = drafter.propose(state, rnd, Proposal.roots(rnd.roots()), Limit.of([STAGES] * 2, [40] * 2), policy)
    tree, rows, seen = proposal.tree, proposal.q_indices(), 0
    assert proposal.q is not None
    paths = tree.path_tokens(torch.arange(tree.num_nodes).expand(2, -1)).tolist()
    for b in range(2):
        for node in rows[b].ge(0).nonzero()[:, 0].tolist():
            path = [rnd.requests[b].root, *(t for t in paths[b][node] if t >= 0)]
            e = [target.embed(torch.tensor(t)) for t in path] + [
                torch.zeros(CONFIG.hidden_size, dtype=torch.float64)
            ] * STAGES
            y = list(outputs(drafter.model.net, rnd.origin[FINAL][b], e[:STAGES]))[len(path) - 1]
            want = torch.softmax(target.head(y, ids=KEEP, norm=False), -1)
            torch.testing.assert_close(proposal.q.prob[rows[b, node]], want, rtol=1e-9, atol=1e-12)
            seen += 1
    assert seen >= 2 * STAGES


def fresh_round(target: Any) -> tuple[Round, Any]:
    rnd = toy_round([[3, 1, 4], [1, 5, 9, 2]], CONFIG.vocab_size)
    noise = torch.Generator().manual_seed(5)
    rnd.origin = {FINAL: torch.randn(2, CONFIG.hidden_size, generator=noise, dtype=torch.float64)}
    return rnd, {b: (r, r.num_known) for b, r in enumerate(rnd.requests)}


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_an_untrained_head_says_what_the_target_said(target: Any, kind: str) -> None:
    config = HeadConfig(kind, replace(CONFIG, num_layers=1), CONFIG.hidden_size, (FINAL,), rows=len(KEEP), stages=2)
    model = StageModel(net(config).double(), target, KEEP)
    f = torch.randn(3, CONFIG.hidden_size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    carry = model.start(f)
    for k in range(2):
        carry, y = model.step(k, carry, torch.tensor([1, 2, 3]))
        torch.testing.assert_close(model.logits(y, None), target.head(f, norm=False), rtol=1e-12, atol=1e-12)


@dataclass(frozen=True, slots=True, eq=False)
class Watched(Heads):
    """Checks every feature that a draft is made from against a pass over the whole text."""

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        proposal = Heads.propose(self, state, rnd, base, limit, policy)
        drafted = proposal.tree.num_drafted().tolist()
        for b, request in enumerate(rnd.requests):
            first_round = not request.output
            assert (drafted[b] == 0) == first_round
            if drafted[b]:
                ids = torch.tensor([request.known])
                on = torch.ones_like(ids, dtype=torch.bool)
                f = Teacher(self.model.target).show(ids, on, on, frozenset({FINAL}), 0).features[FINAL]
                torch.testing.assert_close(rnd.origin[FINAL][b], f[0, -2], rtol=1e-9, atol=1e-9)
        return proposal


@pytest.mark.one_in(2)
@pytest.mark.parametrize("policy", [Chain(Draw.GIVEN), BestFirst(3)], ids=["chain", "tree"])
def test_a_draft_starts_from_the_feature_that_produced_the_root(target: Any, policy: Any) -> None:
    """More requests than slots, so slots change hands; a new owner's first round must not use the old one's feature."""
    run(target, Watched(heads("hydra", target).model), policy, temperature=1.0)


def test_a_text_without_a_feature_gets_no_guess_and_its_neighbours_do(target: Any) -> None:
    drafter, rnd, state = heads("hydra", target), *fresh_round(target)
    for stale in ({}, {1: (rnd.requests[0], 4)}, {1: (rnd.requests[1], 3)}):
        known = {0: state[0], **stale}
        proposal = drafter.propose(known, rnd, Proposal.roots(rnd.roots()), Limit.of([2, 2], [9, 9]), Static((2, 2)))
        assert proposal.tree.num_drafted().tolist() == [6, 0]
    assert drafter.propose({}, rnd, Proposal.roots(rnd.roots()), Limit.of([2, 2], [9, 9]), Chain()).tree.num_nodes == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_is_no_deeper_than_there_are_heads(target: Any, kind: str) -> None:
    for policy in (Chain(), Chain(Draw.GIVEN), BestFirst(2), Static((1,) * 6), Static((1,) * 6, Draw.IID)):
        drafter, rnd, state = heads(kind, target), *fresh_round(target)
        proposal = drafter.propose(state, rnd, Proposal.roots(rnd.roots()), Limit.of([6, 6], [40, 40]), policy)
        tree = proposal.tree
        assert (tree.depths() * tree.live).amax(1).tolist() == [STAGES, STAGES]
        assert proposal.fault is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_contract_of_drafters_holds_with_columns_trimmed_or_not(target: Any, kind: str) -> None:
    """The same tree alone and in a batch, within its limits; guesses only among the kept tokens."""
    for policy in (Chain(), Static((2, 2)), BestFirst(3)):
        check_drafter(Rooted(heads(kind, target).model), policy, CONFIG.vocab_size)
    drafter, rnd, state = heads(kind, target), *fresh_round(target)
    columns = torch.arange(0, CONFIG.vocab_size, 3)
    limit = Limit.of([3, 3], [20, 20])
    proposal = drafter.propose(state, rnd.trimmed(columns), Proposal.roots(rnd.roots()), limit, Static((3, 2, 1)))
    drafted = set(proposal.tree.tokens[:, 1:][proposal.tree.live[:, 1:]].tolist())
    assert drafted and drafted <= set(range(0, CONFIG.vocab_size, 6))


@dataclass(frozen=True, slots=True, eq=False)
class Rooted(Heads):
    """With a feature for every text, made from its length, whoever ran last."""

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        wave = torch.arange(CONFIG.hidden_size, dtype=torch.float64) * rnd.lengths[:, None]
        rnd.origin = {FINAL: wave.sin() * 3}
        known = {int(s): (r, r.num_known) for s, r in zip(rnd.slots, rnd.requests, strict=True)}
        return Heads.propose(self, known, rnd, base, limit, policy)


def test_more_levels_than_heads_are_refused(target: Any) -> None:
    head = random_head("medusa", target)
    assert levels(head, None) == levels(head, 3) == 3 and levels(head, 1) == 1
    with pytest.raises(OptionError, match=r"depth cannot be 4.*3 levels"):
        levels(head, 4)
