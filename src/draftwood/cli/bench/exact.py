"""draftwood bench exact: token for token, recipes against plain decoding and plain decoding against transformers."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.bench.cells import NONE
from draftwood.cli.bench.common import shared
from draftwood.cli.bench.common.progress import once_per_method
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.options import Device, Dtype, Frequency, Presence, Repetition
from draftwood.cli.screen import Screen
from draftwood.errors import OptionError

if TYPE_CHECKING:
    from draftwood.bench.study.same_text import Comparison

FEW = 20  # rounds of each kind below which equality proves little
BATCH_HELP = "Above 1: a ragged batch with arrivals, departures and preemption."


def exact(
    questions: shared.Questions,
    recipes: shared.Recipes = "prompt_lookup,speculative_sampling",
    count: shared.Count = 40,
    max_tokens: shared.MaxTokens = 64,
    against: Annotated[str | None, typer.Option(help="Also compare plain decoding with 'transformers'.")] = None,
    temperature: shared.Temperature = 0.0,
    seed: int = 0,
    repetition_penalty: Repetition = 1.0,
    presence_penalty: Presence = 0.0,
    frequency_penalty: Frequency = 0.0,
    batch: Annotated[int, typer.Option(min=1, max=shared.MOST_SEQUENCES, help=BATCH_HELP)] = 1,
    dtype: Dtype = "auto",
    device: Device = "auto",
    model: shared.Model = "smollm2",
    out: shared.Out = None,
) -> None:
    """Token for token: recipes against plain decoding, plain decoding against transformers."""
    from draftwood.bench.provenance import provenance
    from draftwood.bench.study.same_text import Setting, compare
    from draftwood.core.sampling.params import SamplingParams
    from draftwood.models.loading.load import load

    shared.writable(out)
    names = shared.recipe_names(recipes)
    params = SamplingParams(
        temperature=temperature,
        seed=seed,
        max_tokens=max_tokens,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
    )
    loaded = load(model, dtype=dtype, device=device)
    if against is not None and loaded.info.backend.startswith("int8"):
        raise OptionError(
            f"{against} computes in floats, this model runs in {loaded.info.backend}\nhint: add --dtype float32"
        )
    setting = Setting(tuple(shared.read_prompts(loaded, questions, count)), params, batch, ties=loaded.info.near_ties)
    screen, found = Screen(), list["Comparison"]()
    source = provenance(loaded.info.backend, loaded.info.device)
    for each in compare(loaded, names, setting, against=against, say=once_per_method()):
        found.append(each)
        screen.lines(differences(each))
    rule = " (rule match where a recipe offers it)" if temperature else ""
    asked = f"{len(setting.prompts)} questions, {max_tokens} tokens{' with penalties' if params.counts_history else ''}"
    screen.line(f"{asked}, temperature {temperature:g}{rule}, {loaded.info.backend}")
    show(screen, found)
    screen.line(json.dumps(source))
    shared.save(out, {"provenance": source, "rows": [asdict(c) for c in found]})
    raise typer.Exit(conclude(screen, found))


def show(screen: Screen, found: "list[Comparison]") -> None:
    drawn = compact(
        "recipe", "against", "identical", "tokens", "near ties", "wrong", "rounds accepting all/some/none",
        "tokens per pass", "preempted", "disabled",
    )  # fmt: skip
    for c in found:
        texts = [f"{c.identical}/{c.answers}", str(c.compared), str(len(c.near)), str(len(c.wrong))]
        if c.why:
            texts = [NONE if c.lossless else "LOSSY", NONE, NONE, NONE]
        rounds, per_pass = "/".join(map(str, c.rounds)), f"{c.emitted / max(c.passes, 1):.2f}"
        drawn.add_row(c.name, c.against, *texts, rounds, per_pass, str(c.preempted), str(c.disabled))
    screen.show(drawn)
    for c in found:
        if c.why:
            screen.line(f"{c.name}: not compared: {c.why}")
    screen.line("noisy oracle: drafts the plain answers with 3 in 10 tokens wrong, so that every kind of round occurs")


def conclude(screen: Screen, found: "list[Comparison]") -> int:
    """The verdict, and the exit status: 0 exact, 1 not exact or a drafter failed, 3 too few rounds to tell."""
    judged, apart = [c for c in found if not c.why], [c for c in found if c.why]
    rounds = [sum(c.rounds[i] for c in judged) for i in range(3)]
    screen.line(f"rounds that accepted all / some / none of their draft: {' / '.join(map(str, rounds))}")
    bad, failed = ([c.name for c in some if not c.good] for some in (judged, apart))
    if bad:
        screen.line(f"NOT EXACT: {', '.join(bad)}")
    if failed:
        screen.line(f"FAILED: {', '.join(failed)}: the drafter was disabled")
    if bad or failed:
        return 1
    if min(rounds) < FEW:
        screen.line(f"equal, but proves little: fewer than {FEW} rounds of some kind\nhint: more questions or tokens")
        return 3
    ties = ", up to the near ties above" if any(c.near for c in judged) else ""
    # Where recipes were not compared, the verdict names those that were.
    screen.line(f"exact{ties}: {', '.join(c.name for c in judged)}" if apart else f"exact{ties}")
    return 0


def differences(c: "Comparison") -> list[str]:
    return [
        f"{label}: {c.name} against {c.against}, question {question}, {apart}"
        for label, found in (("near tie", c.near), ("DIFFERENT", c.wrong))
        for question, apart in found
    ]
