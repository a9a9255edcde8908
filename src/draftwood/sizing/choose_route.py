"""What `Route` chooses among for a target: the head that ships for it, if any, and what rounds cost on this machine."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch

from draftwood.controllers.costs.cost import LONGEST, CostModel
from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.estimates.acceptance import DEPTHS
from draftwood.controllers.fixed import Fixed
from draftwood.core import host
from draftwood.core.forward import Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Drafter, LengthController, Runner, TreePolicy
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.verdict import Times
from draftwood.drafters.combine.arms import Arm, ConfidentChain, SizedTree
from draftwood.drafters.combine.route import Route
from draftwood.drafters.nets.files.find import load_head, ships
from draftwood.drafters.nets.make_drafter import feature_drafter
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.stateless import Stateless
from draftwood.kernels.cpu.processor import processor_name
from draftwood.sizing.choose_size import SLOWER, Asked, backend_of, timed
from draftwood.sizing.remembered import Timed, remembered_times
from draftwood.sizing.shipped_acceptance import load_acceptance
from draftwood.sizing.sibling_acceptance import measured_acceptance
from draftwood.sizing.trials import SIZES, timed_trials, trials
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

HEAD = "eagle3"
CHILDREN = 3  # tokens of each step of a head's chain that may be scored: its own, and leaves beside it
NO_DRAFTER = "none"  # names costs of passes alone
DISTURBED = "timed beside busy processes"
_PARTS: dict[str, Any] = {"policy": BestFirst(), "verifier": Match(), "controller": Fixed(0)}


def drafter_and_costs(target: Runner) -> tuple[Drafter | None, Arm, tuple[Times, ...]]:
    """The drafter that runs a model (None: none ships for the target), how its drafts are sized, and rounds that were timed
    on this machine."""
    if not ships(HEAD, target):
        return None, ConfidentChain(), pass_costs(target)
    model = feature_drafter(load_head("auto", target, HEAD, HEAD), target)
    return model, *arm_and_costs(target, model)


def arm_and_costs(target: Runner, model: Drafter, weights: str = "auto") -> tuple[Arm, tuple[Times, ...]]:
    """How drafts of a head are sized, and rounds with them that were timed on this machine. Times are kept of the head that
    ships."""
    arm: Arm = ConfidentChain(children=CHILDREN)
    if not host.on_host(target.info.device):
        arm = SizedTree(load_acceptance(HEAD, target), Asked(None, None, None).sizes(max(DEPTHS)))
    if weights == "auto":
        return arm, draft_costs(target, model, HEAD)
    return arm, trials(target, Recipe(drafter=model, **_PARTS), f"route {weights}")


def beam_and_children(target: Runner) -> tuple[int | None, int | None]:
    """Of the trees that the arm above sizes: a chain with leaves beside it, or what the limit says."""
    return (1, CHILDREN) if host.on_host(target.info.device) else (None, None)


def draft_costs(target: Runner, drafter: Drafter, name: str) -> tuple[Times, ...]:
    """Rounds of this drafter, timed on this machine. `name`: of the drafter with all that its costs depend on."""
    return timed_draft_costs(target, drafter, name).found


def timed_draft_costs(target: Runner, drafter: Drafter, name: str) -> Timed[tuple[Times, ...]]:
    """The same, with how quiet the machine was."""
    return _remembered_trials(target, Recipe(drafter=drafter, **_PARTS), name)


@dataclass(frozen=True, slots=True)
class WhatPays:
    """A drafter with its controller, and a sentence for the banner."""

    drafter: Drafter
    controller: LengthController
    note: str
    pays: bool = True

    def instead(self, told: str, own: Recipe) -> Recipe:
        """`own`, which decides by itself how long a draft is, where chains of some fixed length pay; else plain decoding."""
        expected = self.note.partition("; plain")[0]
        if not self.pays:
            return self.recipe(told)
        return replace(own, notes=(f"{told}; a chain of the best fixed length: {expected}",))

    def recipe(self, told: str) -> Recipe:
        """`told`: what drafts, for the banner."""
        notes = (f"{told}: {self.note}; size=paper drafts in every round",)
        parts: dict[str, Any] = {"policy": Chain(Draw.GIVEN), "verifier": Match(), "controller": self.controller}
        return Recipe(drafter=self.drafter, notes=notes, **parts)


@dataclass(frozen=True, slots=True)
class Expected:
    """What chains of a drafter are expected to bring one request at a time. `right`: how often the drafter's best token is;
    `speed`: of chains of the best fixed length, over plain decoding; `note`: both, for a banner; `quiet`: no other processes
    disturbed the times."""

    times: tuple[Times, ...]
    right: float
    speed: float
    note: str
    quiet: bool = True

    @property
    def pays(self) -> bool:
        return self.speed >= SLOWER

    def as_note(self) -> str:
        """For a recipe that chooses the length of its drafts, and none, by the requests that run."""
        told = f"one request at a time, chains of the best fixed length: {self.note}"
        if self.pays:
            return f"{told}; it drafts as far as that pays for all requests that run"
        if not self.quiet:
            return f"{told}; {DISTURBED}, so it tries drafts now and then"
        return f"{told}; so it decodes plainly here, and tries drafts now and then"


def expected_of_chains(target: Runner, drafter: Drafter, name: str, most: int) -> Expected:
    """Chains of at most so many tokens, from times and an acceptance that were measured at the drafter's first use. `name`:
    of the drafter with all that its costs depend on."""
    costs = timed_draft_costs(target, drafter, name)
    cost, right = timed(costs.found), measured_acceptance(target, drafter, name, 0.0)[0]
    plain = _seconds_per_token(cost, right, 0)
    best = max((plain / _seconds_per_token(cost, right, depth) for depth in range(1, most + 1)), default=1.0)
    told = f"expected speed {best:.2f}x plain decoding on {backend_of(target)}, drafted tokens are right in {right:.0%}"
    return Expected(costs.found, right, best, told, costs.quiet)


def what_pays(target: Runner, drafter: Drafter, name: str, most: int) -> WhatPays:
    """Chains of this drafter, of at most so many tokens, in rounds where they are expected to pay. Where the acceptance that
    was measured at its first use says that none will, nothing, so that not even a text is followed. `name`: as above."""
    found = expected_of_chains(target, drafter, name, most)
    if not found.pays and found.quiet:
        why = f"this is plain decoding, because drafts do not pay here: {found.note}"
        return WhatPays(Nothing(), Fixed(0), why, False)
    route, controller = Route((), drafter, ConfidentChain(most)), Priced(most, most, found.times)
    if not found.pays:
        return WhatPays(route, controller, f"{found.note}; {DISTURBED}, so drafts are tried", False)
    return WhatPays(route, controller, f"{found.note}; plain decoding where that pays more")


def risk_worth_taking(target: Runner, drafter: Drafter, name: str, most: int) -> float:
    """How likely it may be that a chain holds a token that will be rejected, before one more token costs more than it gains.
    With a risk r, one more token costs c1, and is text with (1 - r) a, which saves s seconds:

        1 - c1 / (a s) = (c2 + delta) / (c1 + c2 + delta),   delta = a s - c1 - c2

    c1: a draft step, and what the target pass grows by; a: how often the drafter's best token is right; s: seconds per token
    with chains of the best fixed length, at most `most`; c2: a target pass. `name`: as in `draft_costs`."""
    cost = timed(draft_costs(target, drafter, name))
    right = measured_acceptance(target, drafter, name, 0.0)[0]
    step = (cost.draft_seconds(4) - cost.draft_seconds(1)) / 3 + (cost.pass_seconds(5) - cost.pass_seconds(2)) / 3
    worth = right * min(_seconds_per_token(cost, right, depth) for depth in range(most + 1))
    return min(max(1 - max(step, 0.0) / worth, 0.0), 1.0) if worth > 0 else 0.0


def _seconds_per_token(cost: CostModel, right: float, depth: int) -> float:
    """Of rounds with chains of this length, whose tokens are right with this chance."""
    tokens = 1 + sum(right**k for k in range(1, depth + 1))
    return (cost.pass_seconds(1 + depth) + cost.draft_seconds(depth) + cost.rest_seconds()) / tokens


def pass_costs(target: Runner) -> tuple[Times, ...]:
    """Rounds of drafts that cost nothing, timed on this machine: what copies of some size take."""
    return timed_pass_costs(target).found


def timed_pass_costs(target: Runner) -> Timed[tuple[Times, ...]]:
    """The same, with how quiet the machine was."""
    return _remembered_trials(target, Recipe(drafter=Echo(), **_PARTS), NO_DRAFTER)


def _remembered_trials(target: Runner, recipe: Recipe, drafter: str) -> Timed[tuple[Times, ...]]:
    """Rounds that were timed once for this target, backend, processor and number of threads, beside as few other processes
    as could be had. Later starts begin with them, and every engine follows its own rounds from there."""

    def find() -> Timed[list[dict[str, Any]]]:
        made = timed_trials(target, recipe, f"route {drafter}")
        return Timed([asdict(each) for each in made.found], made.taken)

    kept = remembered_times(target, "costs", on_this_machine(target, drafter), _checked, find)
    return Timed(tuple(Times(**each) for each in kept.found), kept.taken)


def on_this_machine(target: Runner, name: str) -> str:
    """A key for what was timed here: with another backend, processor or number of threads it would be another time."""
    info, device = target.info, target.info.device
    chip = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    return f"{info.backend} {info.dtype} {chip} {torch.get_num_threads()} {name}"


def _checked(found: Any) -> list[dict[str, Any]]:
    """ValueError unless these are the times of all sizes: a drafter that failed while it was timed has fewer."""
    if not isinstance(found, list) or len(found) != len(SIZES):
        raise ValueError("not the times of all sizes")
    for each in found:
        seconds, *counts = (each[field.name] for field in fields(Times))
        numbers = [*seconds.values(), *counts]
        whole = all(isinstance(x, int | float) and 0 <= x < 2**31 for x in numbers)
        if not whole or not each["tokens"] or not 0 < seconds.get("score", 0) < LONGEST:
            raise ValueError(f"no times: {each}")
    return found


@dataclass(frozen=True, slots=True)
class Echo(Stateless):
    """Repeats the newest token: drafts of any size that cost nothing, for timing passes."""

    needs: Needs = Needs()
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        count = limit.tier.nodes - 1
        tokens = [[r.root] * count for r in rnd.requests]
        lists = [[*range(count)]] * rnd.batch, [[-float(i) for i in range(count)]] * rnd.batch
        return base.with_given(tokens, *lists)
