"""draftwood eval RECIPE: acceptance, equality with plain decoding's text, and speed-up, measured and predicted."""

import json as jsonlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.bench.cells import interval
from draftwood.cli import open_llm, options
from draftwood.cli.bench.common.progress import quarters
from draftwood.cli.bench.common.shared import Temperatures, begin, read_questions
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.screen import Screen
from draftwood.errors import OptionError

if TYPE_CHECKING:
    from draftwood.bench.study.evaluate import Evaluation
    from draftwood.bench.study.predict import Forecast
    from draftwood.models.loading.load import Loaded

TERMS = {"target pass": "score", "draft": "draft", "verify": "verify", "rest": "rest", "sum": "total"}


def evaluate(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe; `draftwood papers` lists them.")],
    model: options.Model = "smollm2",
    questions: options.Questions = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", help='Texts to continue without a chat template: {"prompt": "..."} a line.'),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="A folder of `train data`: its held-out dialogues.")
    ] = None,
    count: options.Count = 12,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=2, help="Tokens of an answer at most.")] = 64,
    temperature: Temperatures = "0,1",
    top_p: options.TopP = 1.0,
    option: options.RecipeOptions = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    seed: options.Seed = 0,
    json: Annotated[bool, typer.Option("--json", help="One JSON object, and nothing else.")] = False,
) -> None:
    """Evaluate one recipe: acceptance by position, tokens per pass, exactness, and its speed-up, predicted and measured.

    Without --questions, --prompts or --data it uses built-in questions, which are in no benchmark.
    """
    temperatures = options.temperatures(temperature)
    options.sampling(top_p=top_p, seed=seed)  # refused before the work
    chosen = open_llm.recipe_options(recipe, option or ())
    if sum(source is not None for source in (questions, prompts, data)) > 1:
        raise OptionError("several sources of prompts are given\nhint: one of --questions, --prompts, --data")

    from draftwood.bench.study.evaluate import evaluator

    loaded, source, _ = begin(model, dtype, device)
    asked = prompts_from(loaded, questions, prompts, data, count)
    judge = evaluator(loaded, recipe, max_tokens=max_tokens, seed=seed, top_p=top_p, **chosen)
    judge.check(asked)
    screen, found = Screen(), list["Evaluation"]()
    if not json:
        lossy = "" if judge.recipe.lossless else ", LOSSY"
        screen.line(
            f"{recipe}{lossy}: {len(asked)} prompts, {max_tokens} tokens, {loaded.info.backend}{options.said_top_p(top_p)}"
        )
    for each in temperatures:
        found.append(judge.run(asked, each, quarters(f"prompts at temperature {each:g}")))
        if not json:
            show(screen, found[-1])
    if json:
        settings = {"recipe": recipe, "options": chosen, "prompts": len(asked), "max_tokens": max_tokens, "seed": seed}
        whole = {**settings, "top_p": top_p, "results": [record(e) for e in found], "provenance": source}
        screen.line(jsonlib.dumps(whole, default=str))
    else:
        screen.line()
        screen.line(jsonlib.dumps(source))
    if any(e.failures or not e.text.good for e in found):
        raise typer.Exit(1)


def prompts_from(
    loaded: "Loaded", questions: Path | None, prompts: Path | None, data: Path | None, count: int
) -> list[list[int]]:
    """Token ids, spread evenly over their source."""
    from draftwood.bench.spec.questions import chat_prompts, spread
    from draftwood.bench.study.backend_error import TURNS
    from draftwood.train.data.dialogues import HELDOUT, read
    from draftwood.train.loop.measure import prompts_of

    if data is not None:
        found = prompts_of(read(data, loaded.tokenizer, loaded.info.vocab_size, split=HELDOUT).items, count)
        if not found:
            raise OptionError(
                f"{data} holds no held-out dialogue with a short prompt\nhint: write more with `train data`"
            )
        return found
    if prompts is not None:
        texts = [q.turns[0] for q in spread(read_questions(prompts), count)]
        return [loaded.tokenizer.encode(text, special=True) for text in texts]
    turns: Sequence[str] = TURNS if questions is None else [q.turns[0] for q in read_questions(questions)]
    return chat_prompts(loaded.tokenizer, spread(turns, count))


def show(screen: Screen, e: "Evaluation") -> None:
    """One temperature as text."""
    a = e.accepted
    depths = " ".join(f"{share:.2f}" for share in a.by_position)
    screen.line()
    screen.line(f"temperature {e.temperature:g}")
    screen.line(f"  tokens per pass      {a.tokens_per_pass:.2f}   ({a.tokens} tokens, {a.passes} target passes)")
    screen.line(f"  accepted by position {depths or 'nothing drafted'}")
    screen.line(f"  rounds               {' / '.join(map(str, a.rounds))}   accepted all / some / none of their draft")
    screen.line(f"  text                 {text_line(e)}")
    for line in (*e.text.wrong, *e.failures):
        screen.line(f"    {line}")
    if e.disturbed:
        screen.line(
            "  USELESS TIMES: other processes used the CPU; the speed-up and the prediction below are not valid"
        )
    if e.decoding is None or e.whole is None:
        screen.line("  speed-up             no answer is long enough to be timed")
        return
    screen.line(f"  speed-up, 95 %       {interval(e.decoding)} decoding; {interval(e.whole)} with the prompts")
    if e.forecast is None:
        screen.line("  predicted            no: it takes two prompts, one to fit the cost model and one to compare")
    else:
        show_forecast(screen, e.forecast)
    mean = sum(e.foreign) / len(e.foreign)
    screen.line(
        f"  machine              {mean:.2f} cores used by other processes on average, {max(e.foreign):.2f} at most"
    )
    if e.disturbed:
        screen.line("  USELESS TIMES: other processes used the CPU; acceptance and text above remain valid")


def text_line(e: "Evaluation") -> str:
    t, kind = e.text, "greedy text" if e.temperature == 0 else "text"
    if not t.judged:
        return f"not compared: {t.why}"
    said = f"{t.identical} of {t.answers} answers identical to autoregressive"
    if not t.good:
        return f"NOT THE {kind.upper()} of autoregressive: {said}, {t.near} near ties"
    ties = f", the others up to {t.near} near tie{'s'[: t.near - 1]}" if t.near else ""
    return f"{kind} equals autoregressive's: {said}{ties} ({t.compared} tokens)"


def show_forecast(screen: Screen, f: "Forecast") -> None:
    """The two figures, their terms, and the term with the largest error where they disagree."""
    p, m = f.predicted, f.measured
    near = "within 15 %" if f.close else "BEYOND 15 %"
    screen.line(
        f"  predicted            {p.speed_up:.2f} from every other prompt; measured {interval(f.ratio)} on the others: "
        f"ratio {f.gap:.2f}, {near}"
    )
    errors = f.errors()
    worst = next(iter(errors))
    if not f.close:
        right = p.speed_up / errors[worst]
        screen.line(f"  off most             {worst}: with its measured value the prediction would be {right:.2f}")
    screen.line(f"  estimates alone      {f.estimates_only:.2f} with the measured tokens per pass")
    drawn = compact("    ms per round", "plain predicted", "plain measured", "recipe predicted", "recipe measured")
    sides = (p.plain, m.plain, p.recipe, m.recipe)
    drawn.add_row("    tokens in a target pass", *(f"{t.nodes:.1f}" for t in sides))
    for name, key in TERMS.items():
        drawn.add_row(f"    {name}", *(f"{1000 * getattr(t, key):.2f}" for t in sides))
    drawn.add_row("    tokens per round", *(f"{t.tokens:.2f}" for t in sides))
    screen.show(drawn)


def record(e: "Evaluation") -> dict[str, Any]:
    """One temperature as JSON."""
    f = e.forecast
    return {
        "temperature": e.temperature,
        "tokens_per_pass": e.accepted.tokens_per_pass,
        "tokens": e.accepted.tokens,
        "passes": e.accepted.passes,
        "accepted_by_position": e.accepted.by_position,
        "rounds": dict(zip(("all", "some", "none"), e.accepted.rounds, strict=True)),
        "text": {**asdict(e.text), "good": e.text.good},
        "failures": e.failures,
        "speed_up": e.decoding and asdict(e.decoding),
        "speed_up_with_prompts": e.whole and asdict(e.whole),
        "forecast": f
        and {
            "predicted": f.predicted.speed_up,
            "measured": asdict(f.ratio),
            "ratio": f.gap,
            "close": f.close,
            "estimates_only": f.estimates_only,
            "errors": f.errors(),
            "predicted_terms": asdict(f.predicted),
            "measured_terms": asdict(f.measured),
        },
        "foreign_cores": e.foreign,
        "disturbed": e.disturbed,
    }
