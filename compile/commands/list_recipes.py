"""speccompile list: the recipes that come with mxspec."""

from __future__ import annotations

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table

from mxspec.recipes.find_recipe import shipped_recipes
from mxspec.recipes.recipe import Recipe
from mxspec.runtime.cli.command import Command, print_json, report_console


@click.command("list", cls=Command)
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object instead of text.")
def list_recipes(*, json_output: bool) -> None:
    """List the recipes that come with mxspec."""
    recipes = shipped_recipes()
    if json_output:
        print_json({"recipes": {name: recipe.as_dict() for name, recipe in recipes.items()}})
    else:
        report_console().print(_table(recipes))


def _table(recipes: dict[str, Recipe]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    table.add_column("target, draft", overflow="fold", width=36)  # with min_width rich cuts the next column
    table.add_column("about")
    for name, recipe in recipes.items():
        table.add_row(name, f"{recipe.target.checkpoint}\n{_draft(recipe)}", recipe.about)
    return table


def _draft(recipe: Recipe) -> str:
    if recipe.draft is None:
        return "no draft"
    return recipe.draft.checkpoint if recipe.draft.unpublished is None else "--draft FOLDER"
