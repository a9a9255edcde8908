"""draftwood train: what drafters learn from, and learning."""

from typing import Any

import typer
from typer.core import TyperGroup

from draftwood.cli.train_data import data
from draftwood.cli.train_recipe import learn


class Names(TyperGroup):
    """`train data` makes data; any other word names recipes: `train eagle2`, `train eagle2,eagle3`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            return "learn", self.commands["learn"], args
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=Names, help="Make training data, train drafters.", no_args_is_help=True, rich_markup_mode=None)
app.command()(data)
app.command(hidden=True)(learn)


@app.callback()
def train() -> None:
    """Make training data (`train data`), or train recipes by name (`train eagle2 --target smollm2 --out FOLDER`)."""
