"""Other recipes on a trace: drafters without a model are simulated on the recorded text, the others run with the model."""

from copy import deepcopy
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from draftwood import recipes
from draftwood.bench.spec.text_equality import not_compared
from draftwood.bench.trace.costs import Costs
from draftwood.bench.trace.drive import drive, params_of, request_of
from draftwood.bench.trace.records import RoundRecord
from draftwood.bench.trace.summary import Summary, decoding, priced
from draftwood.bench.trace.text_model import FollowText, KnownCosts, Retimed, TextModel
from draftwood.bench.trace.trace import MATCH, Trace
from draftwood.controllers.costs.priced import Priced
from draftwood.core.config import EngineConfig
from draftwood.core.model_info import ModelInfo
from draftwood.core.protocols import Drafter
from draftwood.core.recipe import Recipe
from draftwood.drafters.combine.route import Route
from draftwood.drafters.nets.files.find import ships
from draftwood.drafters.nothing import Nothing
from draftwood.engine.engine import Engine
from draftwood.errors import DraftwoodError, TraceError
from draftwood.models.loading.load import Loaded
from draftwood.runners.cpu import CpuRunner
from draftwood.sizing.choose_route import HEAD

PLAIN = "autoregressive"
AUTO = "auto"


def need_oracle(trace: Trace) -> None:
    """TraceError if the recorded texts are not those of plain decoding, or cannot be asked for again."""
    header = trace.header
    if not header.lossless:
        raise TraceError(
            f"the trace was recorded with {header.rule}, which is LOSSY: its text is not the target's\n{_HINT}"
        )
    if header.rule != MATCH and not all(each.greedy for each in trace.requests):
        raise TraceError(
            f"the trace was recorded with {header.rule}, which uses random numbers of its own above temperature 0: "
            f"plain decoding with the same seed emits another text\n{_HINT}"
        )


_HINT = "hint: record with a recipe of the rule match, such as auto, or at temperature 0; --cut and --cost need neither"


def need_same_text(recipe: Recipe, trace: Trace, name: str) -> None:
    """TraceError if the recipe would have emitted another text than the recorded one."""
    for each in trace.requests:
        if why := not_compared(recipe, 0.0 if each.greedy else 1.0):
            raise TraceError(
                f"{name} cannot be replayed: {why}, so the recorded text does not say what it accepts\n"
                "hint: a recipe of the rule match, or verifier=match where the recipe has this option"
            )


def runs_no_model(drafter: Drafter) -> bool:
    """Whether drafts are made from the text alone."""
    if isinstance(drafter, Route):
        return drafter.model is None
    return isinstance(drafter, Nothing) or hasattr(drafter, "retrieve")


def simulated_recipe(name: str, trace: Trace) -> Recipe | None:
    """The recipe on the recorded text; None if its drafter needs the model."""
    if name.partition(":")[0] == AUTO and _ships(trace):
        return None
    try:
        recipe = recipes.build(name, CpuRunner(TextModel(trace.header)))
    except DraftwoodError:
        if _needs_text_only(name):
            raise
        return None  # the model itself will say what is wrong, if anything is
    return recipe if runs_no_model(recipe.drafter) else None


def _needs_text_only(name: str) -> bool:
    """Whether a recipe has no option for weights, layers or another recipe's drafter: its errors are about its own
    options."""
    return not {"weights", "inner", "draft", "skip"} & recipes.options(name).keys()


@dataclass(frozen=True, slots=True)
class _Named:
    """As much of a target as the list of shipped weights looks at."""

    info: ModelInfo


def _ships(trace: Trace) -> bool:
    info = replace(TextModel(trace.header).info, fingerprint=trace.header.fingerprint)
    target: Any = _Named(info)
    return ships(HEAD, target) is not None


@torch.inference_mode()
def simulate(name: str, recipe: Recipe, trace: Trace, costs: Costs) -> Summary:
    """A drafter without a model, on the recorded text. Its own drafting is timed here."""
    need_oracle(trace)
    need_same_text(recipe, trace, name)
    rounds = simulated_rounds(recipe, trace, costs)
    timed = [each.times["propose"] for each in decoding(rounds)]
    return priced(name, "simulated on the recorded text", rounds, costs, median(timed) if timed else 0.0)


def simulated_rounds(recipe: Recipe, trace: Trace, costs: Costs) -> list[RoundRecord]:
    header, answered = trace.header, trace.answered
    controller = recipe.controller
    if isinstance(controller, Priced):  # what it was built with was timed on a model that is none
        context = max(1, sum(len(each.text) for each in answered) // max(1, len(answered)))
        controller = replace(controller, times=costs.timed_rounds(context))
    texts = {each.asked.number: each.text for each in answered}
    own = replace(recipe, controller=Retimed(controller, costs), verifier=FollowText(texts))
    config = EngineConfig(
        max_num_seqs=header.max_num_seqs, max_prefill_tokens=header.max_prefill_tokens, disable_slow_drafts=False
    )
    target = CpuRunner(TextModel(header)).open(header.max_num_seqs, header.max_model_len, pools=own.needs.pools)
    engine = Engine(target, own, cost_model=KnownCosts(costs), config=config)
    done, rounds = drive(engine, answered, lambda each: request_of(each, header.vocab_size))
    for each, request in zip(answered, done, strict=True):
        if request.output != each.output:
            raise TraceError(
                f"request {each.asked.number} ends after {len(request.output)} tokens, recorded are {len(each.output)}\n"
                "hint: record it again"
            )
        if request.stats.disabled is not None:
            raise TraceError(f"the drafter was disabled while it was replayed: {request.stats.disabled}")
    return rounds


def run_with_model(name: str, trace: Trace, costs: Costs, loaded: Loaded) -> Summary:
    """The real recipe on the recorded prompts. Tokens are counted in the run; its time is what the costs expect, and what
    drafting took here where they do not know it."""
    from draftwood.llm import LLM

    header = trace.header
    need_oracle(trace)
    need_model(trace, loaded)
    if any("grammar" in each.asked.params for each in trace.requests):
        raise TraceError(f"{name} cannot be run again: a recorded request has a grammar, which no trace holds")
    config = EngineConfig(
        max_num_seqs=header.max_num_seqs,
        max_prefill_tokens=header.max_prefill_tokens,
        max_model_len=header.max_model_len,
    )
    with LLM(loaded, name, config=config) as llm:
        need_same_text(llm.recipe, trace, name)
        answered = trace.answered
        done, rounds = drive(llm.engine, answered, lambda each: llm.request(each.asked.prompt, params_of(each)))
    same = sum(request.output == each.output for request, each in zip(done, answered, strict=True))
    notes = [f"run with the model on the recorded prompts: {same} of {len(done)} texts equal the recorded ones"]
    notes += {f"its drafter was disabled: {request.stats.disabled}" for request in done if request.stats.disabled}
    if not costs.model.draft_seconds(1):
        costs = deepcopy(costs)
        for each in decoding(rounds):
            if each.times.draft_passes:
                costs.model.draft.observe(each.times.draft_passes, each.times.draft_nodes, each.times["propose"])
        notes.append("its drafting was timed here: the costs have none")
    timed = [each.times["propose"] for each in decoding(rounds) if not each.times.draft_passes]
    return priced(name, "run with the model", rounds, costs, median(timed) if timed else 0.0, tuple(notes))


def need_model(trace: Trace, loaded: Loaded) -> None:
    """TraceError if this is not the model, or not the arithmetic, of the trace."""
    header = trace.header
    for what, then, now, hint in (
        ("model", header.fingerprint, loaded.fingerprint, f"--model {header.model or 'NAME'}"),
        ("backend", header.backend, loaded.info.backend, "--dtype and --device as recorded"),
    ):
        if then != now:
            raise TraceError(
                f"the trace is of the {what} {then or 'without a name'!r}, this one is {now!r}\nhint: {hint}"
            )
