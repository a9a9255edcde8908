"""Options that several commands share, spelt and explained once."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from draftwood.errors import OptionError
from draftwood.option_parsing import biases

if TYPE_CHECKING:
    from draftwood.core.sampling.params import SamplingParams

Model = Annotated[
    str, typer.Option("--model", "-m", help="A model: its alias, a GGUF file, a folder or a name on the Hub.")
]
RecipeName = Annotated[str, typer.Option("--recipe", "-r", help="How to draft; `draftwood papers` lists them.")]
RecipeOptions = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the recipe, e.g. depth=6. Repeatable."),
]
Dtype = Annotated[
    Literal["auto", "int8", "q4", "float32", "float64", "bfloat16", "float16"],
    typer.Option(
        "--dtype",
        help="Precision of the model. auto: int8 on a CPU, bfloat16 elsewhere. The weights of a GGUF file keep "
        "their types on a CPU, where int8 rounds its floats; q4: 4-bit weights.",
    ),
]
Device = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, cuda:N, or auto: a GPU if there is one.")
]
BatchInvariant = Annotated[
    bool,
    typer.Option(
        "--batch-invariant",
        help="Answers that never depend on what runs beside them. Refused where that cannot be.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only the answers: no remarks and no statistics.")]
Color = Annotated[
    bool | None, typer.Option("--color/--no-color", help="Colours. Default: on a terminal, unless NO_COLOR is set.")
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", help="Tokens of an answer at most.")]
MinTokens = Annotated[int, typer.Option("--min-tokens", help="The answer has at least so many tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="0 takes the most probable token.")]
TopK = Annotated[int, typer.Option("--top-k", help="Only the k most probable tokens; 0 or -1 keeps all.")]
TopP = Annotated[float, typer.Option("--top-p", help="Only the most probable tokens that sum to p.")]
MinP = Annotated[float, typer.Option("--min-p", help="Only tokens at least this times as probable as the best.")]
Seed = Annotated[int, typer.Option("--seed", "-s", help="The same seed draws the same tokens.")]
FreshSeed = Annotated[
    int | None,
    typer.Option("--seed", "-s", help="The same seed draws the same tokens. Default: a fresh one each time."),
]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="End before this text. Repeatable.")]
StopTokenIds = Annotated[
    list[int] | None, typer.Option("--stop-token-id", metavar="ID", help="End at this token. Repeatable.")
]
IncludeStop = Annotated[bool, typer.Option("--include-stop", help="Keep the text or token that ended the answer.")]
System = Annotated[str | None, typer.Option("--system", help="A system message before the conversation.")]
Repetition = Annotated[
    float, typer.Option("--repetition-penalty", help="Above 1: tokens of prompt and answer become less probable.")
]
Presence = Annotated[
    float, typer.Option("--presence-penalty", help="Subtracted from the logits of tokens of the answer.")
]
Frequency = Annotated[float, typer.Option("--frequency-penalty", help="The same, for each occurrence.")]
LogitBias = Annotated[
    list[str] | None,
    typer.Option("--logit-bias", metavar="ID=VALUE", help="Added to a token's logit; -inf forbids it. Repeatable."),
]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on after an end-of-sequence token.")]
Logprobs = Annotated[
    int | None, typer.Option("--logprobs", help="Log-probabilities of each token and of the N most probable ones.")
]
TraceFile = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Record every round there; `draftwood replay` reads it. A new file."),
]
QuestionFile = Annotated[
    Path | None,
    typer.Option("--file", "-f", help='Questions, one JSON object a line: {"turns": [...]} or {"prompt": "..."}.'),
]
Questions = Annotated[
    Path | None, typer.Option("--questions", help="Questions, one JSON object a line, asked as chat turns.")
]
Count = Annotated[int, typer.Option("--count", min=1, help="How many prompts, spread evenly.")]


def temperatures(text: str, name: str = "temperature", *, above_zero: bool = False) -> list[float]:
    """0,0.7,1 as a list, each once; `above_zero` for commands that are trivial for greedy decoding."""
    try:
        found = list(dict.fromkeys(float(word) for word in text.split(",")))
    except ValueError:
        example = "0.3,1" if above_zero else "0,1"
        raise OptionError(f"{name} cannot be {text!r}\nhint: numbers, for example {example}") from None
    hint = ""
    if not all(0 <= temperature <= 1e6 for temperature in found):  # every request refuses more
        hint = f"{'above 0' if above_zero else '0 or more'}, up to a million"
    elif above_zero and min(found) < 1e-6:  # so little is greedy
        hint = "above 0; at 0 every exact rule follows the target's best token"
    if hint:
        raise OptionError(f"{name} cannot be {text!r}\nhint: {hint}")
    return found


def sampling(
    *,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    seed: FreshSeed = None,
    stop: Stop = None,
    stop_token_id: StopTokenIds = None,
    include_stop: IncludeStop = False,
    min_tokens: MinTokens = 0,
    repetition_penalty: Repetition = 1.0,
    presence_penalty: Presence = 0.0,
    frequency_penalty: Frequency = 0.0,
    logit_bias: LogitBias = None,
    ignore_eos: IgnoreEos = False,
    logprobs: Logprobs = None,
) -> "SamplingParams":
    """Options of a command as sampling params, which check themselves. `with_sampling` reads the list from here."""
    given = {**locals(), "logit_bias": biases(logit_bias or ())}
    ends, include = given.pop("stop_token_id"), given.pop("include_stop")  # the names that differ

    from draftwood.core.sampling.params import SamplingParams

    return SamplingParams(**given, stop_token_ids=ends, include_stop_str_in_output=include)


def said_top_p(top_p: float) -> str:
    """For the end of a heading; empty where every token is kept."""
    return "" if top_p == 1 else f", top-p {top_p:g}"


def with_sampling(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of `sampling` after its own. It gets them together as `params`."""
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "params"]
    shared = list(inspect.signature(sampling).parameters.values())

    @wraps(command)
    def run(**given: Any) -> None:
        params = sampling(**{p.name: given.pop(p.name) for p in shared})
        command(**given, params=params)

    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in [*own, *shared]}
    return run
