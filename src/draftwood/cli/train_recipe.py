"""draftwood train RECIPE: teach a drafter to speak like its target."""

import signal
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.cli.interrupt import STATUS, until_interrupted
from draftwood.cli.screen import Screen, table

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from draftwood.train.loop.measure import Acceptance
    from draftwood.train.loop.run import Learning, Session
    from draftwood.train.loop.trainer import Report

DATA_SHARE = 0.35  # of the minutes, where the data must be made first
OWN_TOKENS = 200_000  # of answers, where it must be made and no minutes are given
LEAST = 4  # dialogues to learn from, however few the minutes
MOMENT = 0.01  # minutes: what a run gets that has used its own and still lacks dialogues


def learn(
    names: Annotated[
        str, typer.Argument(metavar="RECIPE[,RECIPE...]", help="What to train; several share one teacher.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder for weights, checkpoint and log.")] = Path("heads"),
    target: Annotated[str, typer.Option("--target", help="The model to imitate.")] = "smollm2",
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data", help="Dialogues: a folder of `train data` or a .jsonl. Repeatable. Made first if missing."
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Begin with these weights: a head file, a folder of RECIPE.safetensors, or auto: those that ship.",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Gradient steps.")] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Or as many steps as fit; counted once, then kept.")
    ] = None,
    pause_after: Annotated[
        float | None,
        typer.Option("--pause-after", help="Save and stop after so many minutes; the same command goes on."),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", min=1, help="Tokens the draft can say, besides the control tokens.")
    ] = 8192,
    batch_tokens: Annotated[int | None, typer.Option("--batch-tokens", min=64, help="Positions of a batch.")] = None,
    longest: Annotated[
        int, typer.Option("--longest", min=16, help="Tokens of a dialogue; what is beyond is cut.")
    ] = 1536,
    join: Annotated[
        bool, typer.Option("--join", help="Several dialogues in a row, so that far positions are learned too.")
    ] = False,
    prompt_share: Annotated[
        float, typer.Option("--prompt-share", help="Share of the positions in prompts that teach too, 0 to 1.")
    ] = 0.0,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    dtype: Annotated[
        str, typer.Option("--dtype", help="Of the target. auto: int8 on a CPU, bfloat16 elsewhere.")
    ] = "auto",
    seed: Annotated[int, typer.Option("--seed", help="Of batches, noise and first weights.")] = 0,
    save_every: Annotated[float, typer.Option("--save-every", help="Minutes between checkpoints.")] = 2.0,
    measure_every: Annotated[
        float, typer.Option("--measure-every", help="Minutes between looks through the engine.")
    ] = 3.0,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Held-out prompts of a look.")] = 8,
    option: Annotated[list[str] | None, typer.Option("--option", help="KEY=VALUE of the recipe's training.")] = None,
    exclude: Annotated[
        list[Path] | None, typer.Option("--exclude", help="Questions to keep out of data made here. Repeatable.")
    ] = None,
) -> None:
    """Train drafters for a target: gradient steps with the target in the loop, no features on disk.

    Without --data the target writes its own first, in a third of the minutes. Killed at any moment, the same command goes
    on and ends where an unbroken run would.
    """
    from draftwood.train.loop.run import Learning, Session

    screen = Screen()
    wanted = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    learning = Learning(
        recipes=wanted,
        data=tuple(data) if data else (out / "data",),
        out=out,
        steps=steps,
        minutes=5.0 if steps is None and minutes is None else minutes,
        pause_after=pause_after,
        rows=rows,
        batch_tokens=batch_tokens,
        longest=longest,
        join=join,
        prompt_share=prompt_share,
        seed=seed,
        start=start,
        save_every=60 * save_every,
        measure_every=60 * measure_every,
        prompts=prompts,
        options=_options(wanted, option or []),
    )
    with until_interrupted(signal.SIGTERM) as until:
        if not data:
            learning = _with_data(screen, learning, target, device, dtype, exclude or [], until)
        session = Session(target, learning, device=device, dtype=dtype)
        _introduce(screen, session)
        done = not until.is_set() and session.run(
            _Watch(screen),
            lambda name, found, step: _tell(screen, name, found, step, held=session.held is not session.train),
            until=until,
            say=screen.aside,
        )
        if done or not until.is_set():
            _finish(screen, session, learning, done)
            return
    screen.aside(f"interrupted after {session.step} steps, which are saved: the same command goes on")
    raise typer.Exit(STATUS)


def _options(names: tuple[str, ...], words: list[str]) -> dict[str, dict[str, Any]]:
    """KEY=VALUE words for every recipe whose training knows the key; RECIPE.KEY=VALUE for one."""
    import inspect

    from draftwood.errors import OptionError
    from draftwood.option_parsing import converted, described
    from draftwood.train.loop.run import training_of

    found: dict[str, dict[str, Any]] = {}
    every: dict[str, inspect.Parameter] = {}
    for name in names:
        training = training_of(name)
        known = {k: p for k, p in inspect.signature(training).parameters.items() if p.kind is p.KEYWORD_ONLY}
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
    learning: "Learning",
    target: str,
    device: str,
    dtype: str,
    exclude: list[Path],
    until: "threading.Event",
) -> "Learning":
    """The target's own dialogues, made in a part of the minutes. A run that has begun to learn keeps those it has."""
    from draftwood.cli.train_data import watch
    from draftwood.train.data import datasets as material
    from draftwood.train.data.run import Settings, make_data
    from draftwood.train.loop import checkpoint
    from draftwood.train.loop.run import CHECKPOINT

    minutes, (folder,) = learning.minutes, learning.data
    spend = None if minutes is None else DATA_SHARE * minutes
    rest = replace(learning, minutes=None if minutes is None or spend is None else minutes - spend)
    have = material.record(folder)
    tokens = OWN_TOKENS if spend is None else None
    left = None if spend is None else spend - _number(have.get("seconds")) / 60  # a run killed here goes on
    if left is None or spend is None:
        enough = _number(have.get("answer_tokens")) >= OWN_TOKENS
    else:  # time alone is no data: a slow target may have ended no dialogue in it
        enough = left < 0.05 * spend and _num_learned(have) >= LEAST
        left = max(left, MOMENT)
    if enough or (learning.out / CHECKPOINT / checkpoint.FILE).is_file():
        return rest
    screen.aside(f"no --data: {target} writes its own into {folder}")
    batch = 512 if device.startswith("cuda") else 16
    settings = Settings(
        tokens=tokens, minutes=left, least=LEAST, exclude=tuple(exclude), seed=learning.seed, batch=batch
    )
    with watch(tokens) as say:
        made = make_data(target, folder, settings, device=device, dtype=dtype, until=until, say=say)
    late = 0.0 if spend is None else _number(made.get("seconds")) / 60 - spend
    if spend is not None and late > max(0.1 * spend, MOMENT):
        screen.aside(f"{spend:.2g} minutes were too few for {LEAST} dialogues, so it took {late:.2g} more")
    if until.is_set():
        screen.aside("interrupted while the data was made: the same command goes on")
        raise typer.Exit(STATUS)
    return rest


def _num_learned(record: dict[str, Any]) -> float:
    """Dialogues that a record counts, those held out left aside."""
    lines = record.get("lines")
    return _number(lines.get("train")) if isinstance(lines, dict) else 0.0


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0.0


def _introduce(screen: Screen, session: "Session") -> None:
    for complaint in session.complaints:
        screen.aside(complaint)
    sizes = ", ".join(f"{name} {_size(plan.net)}" for name, plan in session.nets.items()) or "no weights"
    screen.aside(
        f"{len(session.train)} dialogues, {session.train.num_answer_tokens:,} answer tokens; {_held(session)}; "
        f"{len(session.keep)} tokens cover {session.coverage:.1%}; {sizes}; target in {session.loaded.backend}"
    )

    for name, start in session.starts.items():
        screen.aside(f"{name} begins with {start.name} ({start.sha256[:16]})")


def _held(session: "Session") -> str:
    if session.held is session.train:
        return "too few to hold any out, so it is measured on these"
    return f"{len(session.held)} held out"


def _size(net: Any) -> str:
    return f"{sum(p.numel() for p in net.parameters()) / 1e6:.2f} M parameters"


class _Watch:
    """A line now and then: step, speed, losses."""

    def __init__(self, screen: Screen, every: float = 20.0) -> None:
        self.screen, self.every, self.last, self.tokens, self.since = screen, every, monotonic(), 0, monotonic()

    def __call__(self, report: "Report") -> None:
        self.tokens += report.tokens
        now = monotonic()
        if now - self.last < self.every and report.step + 1 < report.steps:
            return
        self.last = now
        losses = "  ".join(
            f"{name} {loss:.3f}{beside(report.figures.get(name, {}))}" for name, loss in report.losses.items()
        )
        speed = self.tokens / max(now - self.since, 1e-9)
        self.screen.aside(f"step {report.step + 1}/{report.steps}  {speed:,.0f} tokens/s  {losses}")


def beside(figures: "Mapping[str, float]") -> str:
    """What a loss is held against: the share of best tokens that were guessed, or what one constant answer would cost."""
    if "hit0" in figures:
        return f" (hit {figures['hit0']:.2f})"
    return f" (best constant {figures['constant']:.3f})" if "constant" in figures else ""


def _tell(screen: Screen, name: str, found: "Acceptance", step: int, *, held: bool) -> None:
    depths = " ".join(f"{share:.2f}" for share in found.by_position)
    rounds = "/".join(map(str, found.rounds))
    whose = "held-out prompts" if held else "prompts it learns from"
    screen.aside(
        f"step {step}  {name}: {found.tokens_per_pass:.2f} tokens per pass on {whose}; accepted by position "
        f"{depths or 'nothing drafted'}; rounds all/some/none {rounds}"
    )


def _finish(screen: Screen, session: "Session", learning: "Learning", done: bool) -> None:
    from draftwood.train.loop.curves import draw
    from draftwood.train.loop.measure import head_file

    rows = table(
        "recipe", "file", "bytes", "at first", "tokens per pass", numbers={"bytes", "at first", "tokens per pass"}
    )
    for name in session.plans:
        looks = session.log.looks(name)
        said = f"{looks[-1]['tokens_per_pass']:.2f}" if looks else "-"
        before = f"{looks[0]['tokens_per_pass']:.2f}" if looks and looks[0]["step"] == 0 < session.step else "-"
        own = [head_file(learning.out, name)] if name in session.nets else []
        for path in (*own, *map(Path, session.made.get(name, {}).values())):
            rows.add_row(name, str(path), f"{path.stat().st_size:,}", before, said)
    screen.show(rows)
    try:
        picture = draw(learning.out)
    except OSError as error:
        screen.aside(f"no curves: {error.strerror or error}")  # the weights are written all the same
        picture = None
    if picture is not None:
        screen.aside(f"curves: {picture}")
    screen.aside("done" if done else "paused: the same command goes on")
