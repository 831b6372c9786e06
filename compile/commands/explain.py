"""speccompile list and explain: the shipped recipes, and the plan of a compile, made from configurations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from mxspec.formats.errors import needs
from mxspec.recipes.find_recipe import read_recipe, shipped_recipes
from mxspec.recipes.recipe import Recipe
from mxspec.runtime.cli.command import Command, print_json, report_console

if TYPE_CHECKING:
    from mxspec.compile.planning.outline import Outline

FROM_CONFIG = "graph, packing, bytes and memory by `speccompile explain`, from its configuration alone"


@click.command("list", cls=Command)
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object instead of text.")
def list_recipes(*, json_output: bool) -> None:
    """List the recipes that come with mxspec."""
    recipes = shipped_recipes()
    if json_output:
        print_json({"recipes": {name: recipe.as_dict() for name, recipe in recipes.items()}})
    else:
        report_console(result=True).print(_table(recipes))


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


@click.command(cls=Command)
@click.argument("recipe", metavar="RECIPE|CHECKPOINT", required=False)
@click.option(
    "--draft",
    metavar="CHECKPOINT",
    help="The draft: a folder, a hub id, or mtp, the target's own layer.  [default: the recipe's, or none]",
)
@click.option("--all", "every", is_flag=True, help="Explain all recipes that come with mxspec.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object instead of text.")
def explain(recipe: str | None, *, draft: str | None, every: bool, json_output: bool) -> None:
    """Show the download, the sizes, the memory and the time of compiling RECIPE or CHECKPOINT.

    Only configurations are read; their graphs are made without weights.
    """
    if every == (recipe is not None):
        raise click.UsageError("expected RECIPE|CHECKPOINT, or --all")
    if every and draft is not None:
        raise click.UsageError("--draft goes with one recipe, not with --all")
    wanted = shipped_recipes() if recipe is None else {recipe: read_recipe(recipe, draft)}
    console = report_console(json_output=json_output, result=True)
    reports = {name: _explain(one, console) for name, one in wanted.items()}
    if json_output:
        print_json({"recipes": reports})


def _explain(recipe: Recipe, console: Console) -> dict[str, Any]:
    """Print the outline of a recipe's models; return it as plain values."""
    with needs("compile", "explaining"):
        from mxspec.compile.planning.outline import outline_models, read_configs
        from mxspec.compile.planning.pair import check_kinds
    configs = read_configs(recipe)
    if "draft" in configs:
        check_kinds(configs["target"], configs["draft"])
    models = outline_models(recipe, configs)
    _print_models(recipe, models, console)
    return _as_json(recipe, models)


def _print_models(recipe: Recipe, models: list[Outline], console: Console) -> None:
    title = f"{recipe.name}: {recipe.about}" if recipe.about else recipe.name
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column("model", no_wrap=True)
    table.add_column("format", no_wrap=True)
    for column in ("M weights", "fetch MB", "bundle MB", "cache MB"):
        table.add_column(column, justify="right")
    for model in models:
        table.add_row(
            model.plan.name,
            model.plan.weight_format,
            f"{model.weights / 1e6:,.1f}",
            _megabytes(model.fetch_bytes) if model.fetch_bytes else "",
            _megabytes(model.file_bytes),
            _megabytes(model.cache_bytes),
        )
    console.print(table)
    lengths = {model.plan.exported.context_length for model in models}
    notes = [
        *(f"{model.plan.name}: {model.wanted.checkpoint}, {model.plan.exported.architecture}" for model in models),
        *(line for model in models if (line := experts_line(model))),
        *(line for model in models if (line := _windows_line(model))),
        *(line for model in models if (line := _budget_line(model))),
        f"K up to {recipe.k_max}, texts of up to {max(lengths):,} tokens",
        f"runs in {_megabytes(_memory(models))} MB with one text of that length",
        f"compiles in about {_minutes(models)} on two cores, in less than 2 GB of memory, fetching not counted",
        f"verified: {_verified(recipe)}",
        *(model.unpublished for model in (recipe.target, recipe.draft) if model is not None and model.unpublished),
    ]
    for note in notes:
        console.print(f"  {note}", soft_wrap=True)


def experts_line(model: Outline) -> str:
    """What calls of a mixture read; nothing for other models."""
    if model.experts is None:
        return ""
    one, eight = (_megabytes(model.read_bytes(tokens)) for tokens in (1, 8))
    return (
        f"{model.plan.name}: {model.experts.chosen} of {model.experts.count} experts a token: of "
        f"{_megabytes(model.matrix_bytes)} MB of matrices a step reads {one} MB, one of 8 tokens about {eight} MB"
    )


def _windows_line(model: Outline) -> str:
    """What windows save of the caches; nothing for models whose layers see whole texts."""
    kept, whole = model.cache_bytes, model.whole_cache_bytes
    if kept == whole:
        return ""
    return f"{model.plan.name}: windows leave {kept:,} bytes of caches, {kept / whole:.1%} of {whole:,}"


def _budget_line(model: Outline) -> str:
    """What the figures of a model with a budget are; nothing for others."""
    if not model.wanted.has_budget:
        return ""
    name, kind = model.plan.name, model.plan.weight_format
    return f"{name}: a budget chooses its formats at compile time; the sizes are those of {kind}"


def _verified(recipe: Recipe) -> str:
    checked = [FROM_CONFIG] if shipped_recipes().get(recipe.name) == recipe else []
    return "; ".join([*checked, *([recipe.verified] if recipe.verified else [])]) or "nothing yet"


def _memory(models: Iterable[Outline]) -> int:
    """The bytes of the weights and of the caches of one text."""
    return sum(model.file_bytes + model.cache_bytes for model in models)


def _minutes(models: Iterable[Outline]) -> str:
    seconds = sum(model.seconds for model in models)
    return f"{max(1, round(seconds / 60))} min" if seconds > 90 else f"{max(1, round(seconds))} s"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f}"


def _as_json(recipe: Recipe, models: list[Outline]) -> dict[str, Any]:
    return {
        "recipe": recipe.as_dict(),
        "verified": _verified(recipe),
        "memory_bytes": _memory(models),
        "compile_seconds": round(sum(model.seconds for model in models)),
        "models": {
            model.plan.name: {
                "checkpoint": model.wanted.checkpoint,
                "architecture": model.plan.exported.architecture,
                "format": model.plan.weight_format,
                "weights": model.weights,
                "matrices": len(model.matrices),
                "context_length": model.plan.exported.context_length,
                "fetch_bytes": model.fetch_bytes,
                "file_bytes": model.file_bytes,
                "cache_bytes": model.cache_bytes,
                "whole_cache_bytes": model.whole_cache_bytes,
                "step_bytes": model.read_bytes(1),
                "experts": None
                if model.experts is None
                else {"count": model.experts.count, "chosen": model.experts.chosen},
            }
            for model in models
        },
    }
