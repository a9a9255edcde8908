"""draftwood train: what drafters learn from, and learning."""

import typer

from draftwood.cli.train_data import data

app = typer.Typer(help="Make training data, train drafters.", no_args_is_help=True, rich_markup_mode=None)
app.command()(data)


@app.callback()
def train() -> None:
    """Make training data, train drafters."""  # a callback keeps this a group while it has one command only
