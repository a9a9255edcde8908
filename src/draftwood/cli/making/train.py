"""draftwood train: make training data, train drafters."""

from typing import Any

import typer
from typer.core import TyperGroup

from draftwood.cli.making.train_data import data
from draftwood.cli.making.train_recipe import learn


class Names(TyperGroup):
    """`train data` makes data; any other word is a list of recipes to train: `train eagle2,eagle3`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            return "", self.commands["learn"], args  # the word is the command's first argument
        return super().resolve_command(ctx, args)


HELP = """Make training data, train drafters.

draftwood train data --out data: the target writes dialogues to train on.

draftwood train RECIPE[,RECIPE...]: trains eagle, eagle2, eagle3, medusa, hydra, mlp_speculator, fast_draft,
dynamic_mcsd or vocab_trim; `draftwood train eagle3 --help` lists the options.
"""
app = typer.Typer(cls=Names, no_args_is_help=True, rich_markup_mode=None)
app.command()(data)
app.command(hidden=True)(learn)


@app.callback(help=HELP)
def train() -> None:
    pass
