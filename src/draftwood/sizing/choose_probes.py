"""How many trained probes ride along, and behind which tokens: what is expected to emit most tokens a second here."""

import logging
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import torch

from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Drafter, LengthController, Runner
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Times
from draftwood.drafters.nets.modules.probes import ProbesModel
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.on_features.probes import TrainedProbes
from draftwood.sizing.choose_route import DISTURBED, on_this_machine, timed_pass_costs
from draftwood.sizing.choose_size import SLOWER, backend_of, timed
from draftwood.sizing.cpu_use import CpuUse, taken
from draftwood.sizing.remembered import Timed, remembered_times
from draftwood.sizing.sibling_acceptance import prompts
from draftwood.sizing.trials import Record, trial_engine
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

SECONDS = 2.0  # at each temperature, after which no further question is asked
TOKENS = 32  # of an answer

log = logging.getLogger("draftwood")


@dataclass(frozen=True, slots=True)
class Yielded:
    """What drafts of some probes gave here. By level: the share of drafts of which more tokens than that were accepted, in
    greedy texts and in sampled ones. `time`: of a round with a draft; None if there was none."""

    greedy: tuple[float, ...]
    sampled: tuple[float, ...]
    time: Times | None

    def accepted(self, depth: int) -> tuple[float, float]:
        """Tokens of a draft of this depth: greedy, sampled."""
        return sum(self.greedy[:depth]), sum(self.sampled[:depth])


@dataclass(frozen=True, slots=True)
class ChosenProbes:
    """A drafter with its controller, and a sentence for the banner."""

    drafter: Drafter
    controller: LengthController
    note: str


def choose_probes(target: Runner, model: ProbesModel, name: str, most: int) -> ChosenProbes:
    """Chains of at most `most` tokens, with probes behind every node or in every second round, where that is expected to
    pay. Where it never is, nothing. `name`: of the weights."""
    gave, passes = yielded(target, model, name), timed_pass_costs(target)
    found, times = gave.found, passes.found
    cost = timed(times)
    rest, plain = cost.rest_seconds(), cost.pass_seconds(1) + cost.rest_seconds()
    draft = 0.0 if found.time is None else found.time["propose"]  # all probes are read in one product

    def speed(drafter: TrainedProbes) -> float:
        tokens = found.accepted(drafter.depth)[0]
        if drafter.everywhere:
            return (1 + tokens) * plain / (cost.pass_seconds(1 + drafter.size) + rest + draft)
        return (2 + tokens) * plain / (2 * (cost.pass_seconds(1 + drafter.depth) + rest) + draft)

    sizes = [
        TrainedProbes(model, depth, everywhere=on, worth=found.accepted(depth))
        for depth in range(1, most + 1)
        for on in (False, True)
    ]
    best = max(sizes, key=speed)
    gain, right = speed(best), found.greedy[0]
    told = f"expected speed {gain:.2f}x plain decoding on {backend_of(target)}, first tokens are right in {right:.0%}"
    if gain < SLOWER and gave.quiet and passes.quiet:
        return ChosenProbes(
            Nothing(), Fixed(0), f"this is plain decoding, because drafts of probes do not pay here: {told}"
        )
    where = "behind every token" if best.everywhere else "in every second round"
    then = "plain decoding where that pays more" if gain >= SLOWER else f"{DISTURBED}, so drafts are tried"
    note = f"{best.depth} probes {where}: {told}; {then}"
    if found.time is not None:
        times = (*times, replace(found.time, draft_passes=best.depth, draft_nodes=best.size))
    return ChosenProbes(best, Priced(best.levels, best.size, times), note)


def yielded(target: Runner, model: ProbesModel, name: str) -> Timed[Yielded]:
    """Measured at first use in a few seconds, then kept."""

    def find() -> Timed[dict[str, Any]]:
        log.info("measuring how often tokens behind probes are accepted, once")
        use = CpuUse()
        measured = [_measured(target, model, temperature) for temperature in (0.0, 1.0)]
        times = sorted((each for _, own in measured for each in own), key=lambda each: each["propose"])
        typical = None if not times else asdict(times[(len(times) - 1) // 3])  # below the median, as for trials
        found = {"greedy": measured[0][0], "sampled": measured[1][0], "time": typical}
        return Timed(found, taken(use.foreign(), torch.get_num_threads()))

    kept = remembered_times(target, "probes", on_this_machine(target, name), _checked, find)
    raw, time = kept.found, None if kept.found["time"] is None else Times(**kept.found["time"])
    return Timed(Yielded(tuple(raw["greedy"]), tuple(raw["sampled"]), time), kept.taken)


def _checked(found: Any) -> dict[str, Any]:
    """ValueError unless these are shares, and a time."""
    for name in ("greedy", "sampled"):
        if not found[name] or not all(0 <= share <= 1 for share in found[name]):
            raise ValueError(f"no shares: {found[name]}")
    if found["time"] is not None:
        Times(**found["time"])
    return found


def _measured(target: Runner, model: ProbesModel, temperature: float) -> tuple[list[float], list[Times]]:
    """Of the drafts in some answers: the shares as above, and the times of their rounds."""
    drafter, record, started = TrainedProbes(model, model.stages), Record(), perf_counter()
    recipe = Recipe(
        drafter=drafter,
        policy=Chain(Draw.GIVEN),
        verifier=Match(),
        controller=Fixed(drafter.levels, drafter.size),
    )
    recipe.check(target)
    drafted, accepted = [0] * model.stages, [0] * model.stages
    for i, prompt in enumerate(prompts(target)):
        if perf_counter() - started > SECONDS:
            break
        params = SamplingParams(temperature=temperature, seed=i, max_tokens=TOKENS)
        request = Request(i, prompt, params, target.info.vocab_size)
        engine = trial_engine(target, recipe, len(prompt) + TOKENS + 2 * model.stages, record)
        engine.add(request)
        while not request.finished:
            engine.step()
        for counts, own in ((drafted, request.stats.drafted), (accepted, request.stats.accepted)):
            for level, count in enumerate(own[: model.stages]):
                counts[level] += count
    shares = [a / d if d else 0.0 for a, d in zip(accepted, drafted, strict=True)]
    return shares, [each for each in record.times if each.draft_passes == model.stages]
