"""draftwood bench: checks and measurements, each printed with where it comes from."""

import typer

from draftwood.cli.bench.engine import engine
from draftwood.cli.bench.exact import exact
from draftwood.cli.bench.passes import passes
from draftwood.cli.bench.quality import quality
from draftwood.cli.bench.rules import rules
from draftwood.cli.bench.spec import spec
from draftwood.cli.bench.verifiers import verifiers

app = typer.Typer(help="Check exactness, measure speeds and costs.", no_args_is_help=True, rich_markup_mode=None)
for command in (exact, engine, spec, quality, verifiers, rules):
    app.command()(command)
app.command("pass")(passes)
