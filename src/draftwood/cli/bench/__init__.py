"""draftwood bench: checks and measurements, each printed with its command, version and machine."""

import typer

from draftwood.cli.bench.common.command import MeasuringCommand
from draftwood.cli.bench.drafters import drafters
from draftwood.cli.bench.edits import edits
from draftwood.cli.bench.engine import engine
from draftwood.cli.bench.exact import exact
from draftwood.cli.bench.gpu import gpu
from draftwood.cli.bench.hostile import hostile
from draftwood.cli.bench.pass_ import pass_
from draftwood.cli.bench.quality import quality
from draftwood.cli.bench.recipes import recipes
from draftwood.cli.bench.report import report
from draftwood.cli.bench.rules import rules
from draftwood.cli.bench.serve import serve
from draftwood.cli.bench.soak import soak
from draftwood.cli.bench.spec import spec
from draftwood.cli.bench.verifiers import verifiers

app = typer.Typer(help="Check exactness, measure speeds and costs.", no_args_is_help=True, rich_markup_mode=None)
for command in (
    spec,
    recipes,
    report,
    exact,
    edits,
    hostile,
    soak,
    engine,
    serve,
    pass_,
    gpu,
    verifiers,
    drafters,
    rules,
    quality,
):
    app.command(command.__name__.strip("_"), cls=MeasuringCommand)(command)
