"""Rules beside each other: one writes the text, all judge the same trees, and none is changed by its company."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import recipes
from draftwood.bench.study.rules.paired_runs import PairedRules
from draftwood.controllers.fixed import Fixed
from draftwood.core.config import EngineConfig
from draftwood.core.forward import Needs
from draftwood.core.legal_draws import RULES, Draw, Shape
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy, Verifier
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded, load
from draftwood.runners.open import runner_of
from draftwood.testing.contracts import Always
from draftwood.testing.exact import Leaf, expected_accepted, joint_error, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, context_free
from draftwood.trees.best_and_one import BestAndOne
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers.block import Block
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from draftwood.verifiers.transport import Transport

P, Q = (0.6, 0.4), (0.3, 0.7)
P4, Q4 = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)


def enumerated(
    rules: dict[str, Verifier], kind: type[PairedRules] = PairedRules
) -> tuple[list[Leaf], list[PairedRules]]:
    """All outcomes of one round of two drafted tokens, each with the book of its run."""
    made: list[PairedRules] = []

    def recipe() -> Recipe:
        made.append(kind(rules, trials=1, every=1))
        return Recipe(drafter=TableDrafter(context_free(Q)), policy=Chain(), verifier=made[-1], controller=Always(2, 2))

    found = leaves(TableModel(2, context_free(P)), recipe, width=1)
    return found, [book for book in made if book.rounds]


@dataclass(slots=True)
class Longest(PairedRules):
    """Planted: the round takes whatever rule kept most, which is a choice by outcome."""

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        each = [rule.verify(proposal, target, rnd.inner(name)) for name, rule in self.rules.items()]
        return max(each, key=lambda verdict: int(verdict.count[0]))


def test_the_text_has_the_targets_distribution_whatever_other_rules_verify():
    found, _ = enumerated({"Rejection": Rejection(), "Transport": Transport()})
    assert joint_error(found, context_free(P), 2, 3) < 1e-12


def test_to_take_the_longest_verdict_of_several_rules_would_bias():
    found, _ = enumerated({"Rejection": Rejection(), "Transport": Transport()}, Longest)
    assert joint_error(found, context_free(P), 2, 3) > 0.01


@pytest.mark.parametrize("other", [Block(), Match()])
def test_a_rule_accepts_as_much_with_other_rules_as_alone(other: Verifier):
    found, books = enumerated({"Rejection": Rejection(), "other": other})
    assert len(found) == len(books)
    beside = sum(leaf.prob * book.rounds[0].rules["other"].kept[0] for leaf, book in zip(found, books, strict=True))
    alone, _ = enumerated({"other": other})
    assert beside == pytest.approx(expected_accepted(alone), abs=1e-12)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Loaded:
    return load(str(folder), dtype="float32")


def text(loaded: Loaded, rule: Any, policy: TreePolicy, *, temperature: float = 1.0, length: int = 24) -> list[int]:
    drafter = recipes.drafter("speculative_sampling:draft=first:1", runner_of(loaded))
    watch = (rule.watch,) if isinstance(rule, PairedRules) else ()
    recipe = Recipe(drafter=drafter, policy=policy, verifier=rule, controller=Fixed(3, 8), watch=watch)
    llm = LLM(loaded, recipe, config=EngineConfig(max_num_seqs=1, max_model_len=128))
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=length)
    return list(llm.generate([[1, 2, 3]], params)[0].token_ids)


def test_the_text_is_what_the_first_rule_alone_would_write(loaded: Loaded):
    book = PairedRules({"Rejection": Rejection(), "Match": Match(), "again": Rejection()}, trials=2)
    tree = Static((2, 2))
    assert text(loaded, book, tree) == text(loaded, Rejection(), tree)
    other = PairedRules({"Match": Match(), "Rejection": Rejection()}, trials=2)
    assert text(loaded, other, tree) == text(loaded, Match(), tree) != text(loaded, Rejection(), tree)


def test_rules_and_trials_have_coins_of_their_own(loaded: Loaded, monkeypatch: pytest.MonkeyPatch):
    rules: dict[str, Verifier] = {"Rejection": Rejection(), "again": Rejection()}
    book = PairedRules(rules, trials=4)
    text(loaded, book, Static((2, 2)), length=32)
    kept = [(r.rules["Rejection"].kept, r.rules["again"].kept) for r in book.rounds]
    assert any(a[0] != b[0] for a, b in kept) and any(len(set(a)) > 1 for a, _ in kept)

    monkeypatch.setattr(Round, "inner", lambda self, stream: self)  # planted: one set of coins for all
    shared = PairedRules(rules, trials=4)
    text(loaded, shared, Static((2, 2)), length=32)
    assert all(len({*r.rules["Rejection"].kept, *r.rules["again"].kept}) == 1 for r in shared.rounds)


@dataclass(slots=True)
class Spy:
    """Rejection that remembers what it was shown."""

    shown: list[Scored] = field(default_factory=list[Scored])
    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Rejection"].draws
    shapes: frozenset[Shape] = RULES["Rejection"].shapes

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        assert target.rnd is rnd
        self.shown.append(target)
        return Rejection().verify(proposal, target, rnd)


def test_every_rule_reads_the_pass_for_itself(loaded: Loaded):
    spies: dict[str, Verifier] = {"first": Spy(), "second": Spy()}
    book = PairedRules(spies, trials=2)
    text(loaded, book, Chain())
    shown = [target for spy in spies.values() if isinstance(spy, Spy) for target in spy.shown]
    assert len({id(target) for target in shown}) == len(shown) >= 4 * len(book.rounds)


def test_rounds_are_timed_and_only_those_with_a_draft_count(loaded: Loaded):
    book = PairedRules({"Rejection": Rejection(), "Match": Match()}, trials=1, every=2)
    emitted = text(loaded, book, Chain())
    assert 0 < len(book.rounds) < len(emitted)
    assert all(judged.seconds > 0 for r in book.rounds for judged in r.rules.values())
    assert all(r.pass_seconds is not None and r.pass_seconds > 0 for r in book.rounds[1:])
    assert all(0 < r.depth <= 3 and r.nodes == r.depth for r in book.rounds)
    assert [r.root is not None for r in book.rounds[:4]] == [True, False, True, False]


def test_a_root_holds_what_was_drawn_and_what_was_given():
    made: list[PairedRules] = []

    def recipe() -> Recipe:
        made.append(PairedRules({"Rejection": Rejection()}, trials=1, every=1))
        policy = BestAndOne((2,))
        return Recipe(drafter=TableDrafter(context_free(Q4)), policy=policy, verifier=made[-1], controller=Always(1, 2))

    leaves(TableModel(4, context_free(P4)), recipe, width=1)
    roots = [book.rounds[0].root for book in made if book.rounds]
    assert roots
    for root in roots:
        assert root is not None and root.draws == 1 and root.given == (3,)
        assert root.p.tolist() == pytest.approx(P4) and root.q.tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6, 0])
        assert root.p.dtype is torch.float32
