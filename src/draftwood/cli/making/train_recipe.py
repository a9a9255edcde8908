"""draftwood train RECIPE: train drafters for a target."""

import signal
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.cli.interrupt import STATUS, until_interrupted
from draftwood.cli.options import Device, Dtype
from draftwood.cli.screen import Screen, table
from draftwood.option_parsing import words_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    import torch

    from draftwood.train.loop.measure import Acceptance
    from draftwood.train.loop.session import Session, TrainSettings
    from draftwood.train.loop.trainer import Report

DATA_SHARE = 0.35  # of the minutes, if the data must be made first
MOST_TOKENS = 200_000  # answer tokens that are made for a run of many steps
LEAST = 4  # dialogues to train on, however few the minutes or steps
LONG = 60.0  # seconds; a shorter run needs no word of how long it takes
MOMENT = 0.01  # minutes for a run that has used its time and has too few dialogues


def learn(
    names: Annotated[
        str, typer.Argument(metavar="RECIPE[,RECIPE...]", help="What to train; several share the target passes.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for weights, checkpoint and log.")] = Path("heads"),
    target: Annotated[str, typer.Option("--target", help="The model to draft for.")] = "smollm2",
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data", help="Dialogues: a folder of `train data` or a .jsonl file. Repeatable. Default: made first."
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help="Initial weights: a head file, a folder of RECIPE.safetensors, or auto: the shipped ones."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Gradient steps.")] = None,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", help="As many steps as fit; a resumed run keeps the number. 5 without --steps."),
    ] = None,
    pause_after: Annotated[
        float | None,
        typer.Option("--pause-after", help="Save and stop after so many minutes; the same command resumes."),
    ] = None,
    draft_vocab_size: Annotated[
        int, typer.Option("--draft-vocab-size", min=1, help="Tokens that can be drafted; control tokens are added.")
    ] = 8192,
    batch_tokens: Annotated[int | None, typer.Option("--batch-tokens", min=64, help="Positions of a batch.")] = None,
    longest: Annotated[
        int, typer.Option("--longest", min=16, help="Tokens of a dialogue; longer ones are truncated.")
    ] = 1536,
    join: Annotated[
        bool, typer.Option("--join", help="Join dialogues into longer sequences, to train on high positions.")
    ] = False,
    prompt_share: Annotated[
        float, typer.Option("--prompt-share", help="Share of the prompt positions to train on, 0 to 1.")
    ] = 0.0,
    dtype: Dtype = "auto",
    device: Device = "auto",
    seed: Annotated[int, typer.Option("--seed", help="Of batches, noise and initial weights.")] = 0,
    save_every: Annotated[float, typer.Option("--save-every", help="Minutes between checkpoints.")] = 2.0,
    measure_every: Annotated[
        float, typer.Option("--measure-every", help="Minutes between measurements of acceptance.")
    ] = 3.0,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Held-out prompts to measure acceptance on.")] = 8,
    bits: Annotated[int, typer.Option("--bits", help="Of a stored weight: 8, or 4 for a smaller file.")] = 8,
    option: Annotated[list[str] | None, typer.Option("--option", help="KEY=VALUE of the recipe's training.")] = None,
    exclude: Annotated[
        list[Path] | None,
        typer.Option("--exclude", help="Benchmark questions to keep out of the data made here. Repeatable."),
    ] = None,
) -> None:
    """Train drafters for a target. The target computes its features during training; none are stored.

    Without --data the target first writes as much as the steps need, or for a third of the minutes. After an interruption
    the same command resumes and ends with the same weights.
    """
    from draftwood.models.loading.load import check_device
    from draftwood.train.loop.session import Session, TrainSettings

    screen, place = Screen(), check_device(device, dtype)
    wanted = tuple(words_of(names))
    settings = TrainSettings(
        recipes=wanted,
        data=tuple(data) if data else (out / "data",),
        out=out,
        steps=steps,
        minutes=5.0 if steps is None and minutes is None else minutes,
        pause_after=pause_after,
        draft_vocab_size=draft_vocab_size,
        batch_tokens=batch_tokens,
        longest=longest,
        join=join,
        prompt_share=prompt_share,
        seed=seed,
        start=start,
        save_every=60 * save_every,
        measure_every=60 * measure_every,
        prompts=prompts,
        bits=bits,
        options=_options(wanted, option or []),
    )
    with until_interrupted(signal.SIGTERM) as until:
        if not data:
            settings = _with_data(screen, settings, target, place, dtype, exclude or [], until)
        session = Session(target, settings, device=place, dtype=dtype)
        _introduce(screen, session)
        done = not until.is_set() and session.run(
            _Progress(screen),
            lambda name, found, step: screen.aside(_measured(name, found, step, _prompts(session))),
            until=until,
            on_message=screen.aside,
        )
        if done or not until.is_set():
            _finish(screen, session, settings, done)
            return
    screen.aside(f"interrupted after {session.step} steps, which are saved: the same command resumes")
    raise typer.Exit(STATUS)


def _options(names: tuple[str, ...], words: list[str]) -> dict[str, dict[str, Any]]:
    """KEY=VALUE for every recipe whose training has the key; RECIPE.KEY=VALUE for one."""
    from draftwood.errors import OptionError
    from draftwood.option_parsing import converted, described, keywords
    from draftwood.train.loop.session import training_of

    found: dict[str, dict[str, Any]] = {}
    every: dict[str, Any] = {}
    for name in names:
        training = training_of(name)
        known = keywords(training)
        every |= known
        own = [w.removeprefix(f"{name}.") for w in words if w.startswith(f"{name}.") or "." not in w.partition("=")[0]]
        mine = [w for w in own if len(names) == 1 or f"{name}.{w}" in words or w.partition("=")[0] in known]
        chosen = converted(name, training, known, mine)
        if chosen:
            found[name] = chosen
    for word in words:
        before, dot, key = word.partition("=")[0].rpartition(".")
        if dot and before not in names:
            raise OptionError(f"--option {word} names no recipe that is trained here\nhint: {', '.join(names)}")
        if not before and key.strip() not in every:
            raise OptionError(f"--option {word}: none of {', '.join(names)} has it\nhint: {described(every)}")
    return found


def _with_data(
    screen: Screen,
    settings: "TrainSettings",
    target: str,
    device: "torch.device",
    dtype: str,
    exclude: list[Path],
    until: "threading.Event",
) -> "TrainSettings":
    """Makes the dialogues: for the steps, or in a share of the minutes. A run with a checkpoint keeps those it has."""
    from draftwood.cli.making.train_data import watch
    from draftwood.train.data import datasets
    from draftwood.train.data.make_dataset import DatasetSettings, make_dataset
    from draftwood.train.loop import checkpoint
    from draftwood.train.loop.session import CHECKPOINT

    minutes, (folder,) = settings.minutes, settings.data
    needed, have = settings.answer_tokens(device), datasets.record(folder)
    tokens, spend, left = None, 0.0, None
    if minutes is None:
        tokens = min(needed or 0, MOST_TOKENS)
        used = _number(have.get("answer_tokens")) >= tokens
        rest = settings
    else:
        spend = DATA_SHARE * minutes
        left = spend - _number(have.get("seconds")) / 60
        used = left < 0.05 * spend
        rest = replace(settings, minutes=minutes - spend)
    lines = have.get("lines")
    num_train = _number(lines.get("train")) if isinstance(lines, dict) else 0.0
    if (used and num_train >= LEAST) or (settings.out / CHECKPOINT / checkpoint.FILE).is_file():
        return rest
    screen.aside(f"no --data: {target} writes dialogues into {folder}{f', {tokens} answer tokens' if tokens else ''}")
    wanted = DatasetSettings(
        tokens=tokens,
        minutes=None if left is None else max(left, MOMENT),
        least=LEAST,
        exclude=tuple(exclude),
        seed=settings.seed,
    )
    with watch(tokens) as progress:
        made = make_dataset(target, folder, wanted, device=device, dtype=dtype, until=until, progress=progress)
    late = _number(made.get("seconds")) / 60 - spend
    if minutes is not None and late > max(0.1 * spend, MOMENT):
        screen.aside(f"{spend:.2g} minutes were too few for {LEAST} dialogues, so it took {late:.2g} more")
    if until.is_set():
        screen.aside("interrupted while the data was made: the same command resumes")
        raise typer.Exit(STATUS)
    return rest


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0.0


def _introduce(screen: Screen, session: "Session") -> None:
    for complaint in session.complaints:
        screen.aside(complaint)
    counts = {name: sum(p.numel() for p in plan.net.parameters()) for name, plan in session.nets.items() if plan.net}
    sizes = ", ".join(f"{name} {count / 1e6:.2f} M parameters" for name, count in counts.items()) or "no weights"
    held = f"{len(session.held)} held out" if session.held is not session.train else "too few to hold any out"
    screen.aside(
        f"{len(session.train)} dialogues, {session.train.num_answer_tokens:,} answer tokens; {held}; "
        f"{len(session.keep)} tokens cover {session.coverage:.1%}; {sizes}; target in {session.loaded.info.backend}"
    )
    for name, start in session.starts.items():
        screen.aside(f"{name} starts from {start.name} ({start.sha256[:16]})")
    least = session.least_seconds()
    if least is not None and least > LONG:
        said = f"{least / 60:.0f} minutes" if least < 2 * 3600 else f"{least / 3600:.1f} hours"
        screen.aside(
            f"{session.settings.steps} steps: reading their batches alone takes the target about {said}, by a timed pass; "
            "--minutes fits the steps to a time"
        )


def _prompts(session: "Session") -> str:
    return "prompts of the training data" if session.held is session.train else "held-out prompts"


class _Progress:
    """Prints step, speed and losses from time to time."""

    def __init__(self, screen: Screen, every: float = 20.0) -> None:
        self.screen, self.every, self.last, self.tokens, self.since = screen, every, monotonic(), 0, monotonic()

    def __call__(self, report: "Report") -> None:
        self.tokens += report.tokens
        now = monotonic()
        if now - self.last < self.every and report.step + 1 < report.steps:
            return
        self.last = now
        losses = "  ".join(
            f"{name} {loss:.3f}{reference(report.figures.get(name, {}))}" for name, loss in report.losses.items()
        )
        speed = self.tokens / max(now - self.since, 1e-9)
        self.screen.aside(f"step {report.step + 1}/{report.steps}  {speed:,.0f} tokens/s  {losses}")


def reference(figures: "Mapping[str, float]") -> str:
    """What a loss is compared with: the share of correct best tokens, or the loss of the best constant."""
    if "hit0" in figures:
        return f" (hit {figures['hit0']:.2f})"
    return f" (best constant {figures['constant']:.3f})" if "constant" in figures else ""


def _measured(name: str, found: "Acceptance", step: int, prompts: str) -> str:
    depths = " ".join(f"{share:.2f}" for share in found.by_position)
    rounds = "/".join(map(str, found.rounds))
    return (
        f"step {step}  {name}: {found.tokens_per_pass:.2f} tokens per pass on {prompts}; accepted by position "
        f"{depths or 'nothing drafted'}; rounds all/some/none {rounds}"
    )


def _finish(screen: Screen, session: "Session", settings: "TrainSettings", done: bool) -> None:
    from draftwood.train.loop.measure import LEAST_USEFUL, head_file
    from draftwood.train.loop.train_log import draw

    heads = ("bytes", "at first", "tokens per pass")
    rows = table("recipe", "file", *heads, numbers=set(heads))
    for name in session.plans:
        found = session.log.measurements(name)
        last = f"{found[-1]['tokens_per_pass']:.2f}" if found else "-"
        before = f"{found[0]['tokens_per_pass']:.2f}" if found and found[0]["step"] == 0 < session.step else "-"
        own = [head_file(settings.out, name)] if name in session.nets else []
        for path in (*own, *map(Path, session.made.get(name, {}).values())):
            rows.add_row(name, str(path), f"{path.stat().st_size:,}", before, last)
    screen.show(rows)
    try:
        if picture := draw(settings.out):
            screen.aside(f"curves: {picture}")
    except OSError as error:
        screen.aside(f"no curves: {error.strerror or error}")
    for name in session.nets if done else ():
        figure = session.tokens_per_pass(name)
        if figure is not None and figure < LEAST_USEFUL:
            screen.aside(
                f"the drafter {name} is not useful yet: {figure:.2f} tokens per pass on {_prompts(session)}, "
                f"plain decoding has 1.00, and below {LEAST_USEFUL} verifying costs more than it saves\n"
                "hint: train longer (--steps, --minutes, in another --out) on more data (`draftwood train data`)"
            )
    screen.aside("done" if done else "paused: the same command resumes")
