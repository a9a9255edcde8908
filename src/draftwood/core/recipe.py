"""Recipe: four choices, always written out, and the check that refuses a composition which would bias the output."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from inspect import signature

from draftwood.core.forward import FINAL, Needs
from draftwood.core.legal_draws import RULES, Draw, Legal, Shape, legal_rules
from draftwood.core.protocols import (
    Drafter,
    LengthController,
    Recorder,
    Runner,
    Scheduler,
    TreePolicy,
    Verifier,
    Watcher,
)
from draftwood.core.round import Round
from draftwood.errors import CompositionError


class Loop(Enum):
    """When drafts are made: before the target's pass, or also for the next round while it runs."""

    SERIAL = "serial"
    OVERLAPPED = "overlapped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """What a recipe is, for lists, docs and labels."""

    title: str
    arxiv: str = ""
    lossless: bool = True
    lossy_with: str = ""  # KEY=VALUE of an option that makes a lossless recipe lossy
    needs: str = ""  # an option that it cannot do without
    claim: str = ""  # the authors' own headline, on their models and machines; empty: they make none


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A drafter proposes, a policy shapes, a verifier accepts, a controller sizes; a scheduler decides who runs."""

    drafter: Drafter
    policy: TreePolicy
    verifier: Verifier
    controller: LengthController
    draft_temperature: float = 1.0  # of draws, times the request's: any is exact, and some accept more
    greedy_policy: TreePolicy | None = None  # for rounds in which every sequence is greedy; None = the same
    scheduler: Callable[[], Scheduler] | None = None  # makes one for each engine; None = first come, first served
    watch: tuple[Watcher, ...] = ()
    record: tuple[Recorder, ...] = ()
    loop: Loop = Loop.SERIAL
    notes: tuple[str, ...] = ()  # what was chosen for the user, one sentence each

    def __post_init__(self) -> None:
        _is_part("drafter", self.drafter, "propose", "a drafter, such as NGram()")
        _is_part("policy", self.policy, "expand", "a tree policy, such as Chain()")
        if self.greedy_policy is not None:
            _is_part("greedy_policy", self.greedy_policy, "expand", "a tree policy, such as BestFirst()")
        if not 0.01 <= self.draft_temperature <= 100:
            raise CompositionError(
                f"draft_temperature cannot be {self.draft_temperature!r}\n"
                "hint: a factor from 0.01 to 100; 1 is the request's own temperature"
            )
        _is_part("verifier", self.verifier, "verify", "a rule, such as Rejection()")
        _is_part("controller", self.controller, "plan", "a length controller, such as Fixed(depth=4)")

    @property
    def needs(self) -> Needs:
        return self.drafter.needs | self.verifier.needs | self.controller.needs

    @property
    def lossless(self) -> bool:
        return self.verifier.lossless

    def policy_for(self, rnd: Round) -> TreePolicy:
        """The policy of a round. Greedy tokens are taken, not drawn, so every rule follows any tree of them; and whose turn
        it is was known before anything was drafted."""
        own = self.greedy_policy
        return self.policy if own is None or not rnd.sampler.all_greedy else own

    def check(self, target: Runner) -> None:
        """CompositionError names the two parts that disagree."""
        policy, verifier, drafter = _name(self.policy), _name(self.verifier), _name(self.drafter)
        draw = self.policy.draw
        if draw not in self.drafter.draws:
            raise CompositionError(
                f"{policy} wants {draw.value} draws, {drafter} supplies {_values(self.drafter.draws)}\n"
                f"hint: {_fitting(drafter, self.drafter.draws, draw)}"
            )
        if self.greedy_policy is not None and self.greedy_policy.draw not in self.drafter.draws:
            raise CompositionError(
                f"{_name(self.greedy_policy)} wants {self.greedy_policy.draw.value} draws, {drafter} supplies "
                f"{_values(self.drafter.draws)}\nhint: {_fitting(drafter, self.drafter.draws, self.greedy_policy.draw)}"
            )
        if self.greedy_policy is not None and self.loop is Loop.OVERLAPPED:
            raise CompositionError(
                "Loop.OVERLAPPED goes on with trees of earlier rounds, so one policy must grow all of them\n"
                "hint: Loop.SERIAL, or no greedy_policy"
            )
        made, defined = (draw, self.policy.shape), _defined(self.verifier)
        if made not in defined:
            others = " or ".join(legal_rules(*made))
            raise CompositionError(
                f"{verifier} is defined for {_values(defined.draws)} draws in {_values(defined.shapes)}, {policy} makes "
                f"{draw.value} ones in {self.policy.shape.value}\nhint: exact for these: {others}"
            )
        pools = self.needs.pools
        twice = sorted({one.name for one in pools for two in pools if one.name == two.name and one != two})
        if twice:
            raise CompositionError(
                f"two parts store different things in the pools {twice}\nhint: give one another name"
            )
        for part in (self.drafter, self.verifier, self.controller):
            if self.loop is Loop.OVERLAPPED and part.needs.borrow:
                raise CompositionError(
                    f"Loop.OVERLAPPED drafts while the target's pass runs, {_name(part)} runs layers of the target itself "
                    "(needs.borrow)\nhint: Loop.SERIAL"
                )
            if part.needs.borrow and not target.info.layer_ranges:
                raise CompositionError(
                    f"{_name(part)} runs some of the target's layers, {target.info.name or 'this target'} runs all or none\n"
                    "hint: a target whose layers can be run one by one: a llama, qwen2, qwen3 or mistral model without hf:"
                )
            missing = sorted(t for t in part.needs.shown if t != FINAL and not 0 <= t <= target.info.num_layers)
            if missing:
                raise CompositionError(
                    f"{_name(part)} taps layers {missing}, the target has taps 0 to {target.info.num_layers}"
                )


def _is_part(role: str, part: object, method: str, such: str) -> None:
    """CompositionError if this is a class, a name or anything else without the method of a part."""
    if isinstance(part, type):
        needed = any(p.default is p.empty for p in signature(part).parameters.values())
        raise CompositionError(f"{role} is a class: {part.__name__}\nhint: {part.__name__}({'...' if needed else ''})")
    if not hasattr(part, method):
        hint = f"recipes.drafter({part!r}, target)" if role == "drafter" and isinstance(part, str) else such
        raise CompositionError(f"{role} is of type {_name(part)}: {part!r}\nhint: {hint}")


def _defined(rule: Verifier) -> Legal:
    """The draws and shapes that a rule declares; of a built-in one only those in the table."""
    ours = RULES.get(_name(rule)) if type(rule).__module__.startswith("draftwood.") else None
    most = Legal(rule.draws, rule.shapes) if ours is None else ours
    return Legal(rule.draws & most.draws, rule.shapes & most.shapes)


def _fitting(drafter: str, supplied: frozenset[Draw], wanted: Draw) -> str:
    """What to take instead of a policy or a drafter that do not fit each other."""
    if supplied == frozenset({Draw.GIVEN}):
        return (
            f"{drafter} draws from no distribution: take Chain(Draw.GIVEN) or BestFirst() with Match(), or a drafter that "
            "has one, such as DraftModel or Features"
        )
    return f"a policy of {_values(supplied)} draws, or a drafter that supplies {wanted.value} ones"


def _name(part: object) -> str:
    return type(part).__name__


def _values(several: frozenset[Draw] | frozenset[Shape]) -> str:
    return " or ".join(sorted(each.value for each in several))
