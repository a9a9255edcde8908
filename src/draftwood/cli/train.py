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
            return "", self.commands["learn"], args  # without a name: the next word names what is trained
        return super().resolve_command(ctx, args)


HELP = """Make training data, train drafters.

draftwood train data --out data: the target writes dialogues to learn from.

draftwood train RECIPE[,RECIPE...]: trains eagle, eagle2, eagle3, medusa, hydra, mlp_speculator, fast_draft,
dynamic_mcsd or vocab_trim; `draftwood train eagle3 --help` lists the options.
"""
app = typer.Typer(cls=Names, no_args_is_help=True, rich_markup_mode=None)
app.command()(data)
app.command(hidden=True)(learn)


@app.callback(help=HELP)
def train() -> None:
    pass
