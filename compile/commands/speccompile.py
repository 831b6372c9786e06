"""speccompile: list and explain recipes, compile, inspect a bundle, or emit it for other programs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from mxspec.compile.commands.emit import check_place, emit, place_of, write
from mxspec.compile.commands.explain import explain, list_recipes
from mxspec.compile.commands.recipe_options import MODELS, recipe_changes, recipe_options
from mxspec.compile.commands.report import as_json, print_loss, print_report
from mxspec.compile.commands.termination import termination_as_interrupt
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import CheckFailed, needs
from mxspec.recipes.find_recipe import read_recipe
from mxspec.runtime.cli.command import Command, Group, print_json, report_console
from mxspec.runtime.cli.option_groups import GroupedCommand, option

OUTPUT = "Output"


class _CompileByDefault(Group):
    """Treats an argument that is not a command as the recipe to compile, or as an option of compile."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {*self.commands, *self.get_help_option_names(ctx), "--version"}
        known = not args or args[0] in own
        return super().parse_args(ctx, args if known else ["compile", *args])


@click.group(cls=_CompileByDefault, subcommand_metavar="RECIPE | CHECKPOINT | COMMAND [ARGS]...")
@click.version_option(package_name="mxspec")
def main() -> None:
    """Compile a RECIPE or a CHECKPOINT into a bundle, or inspect and export a bundle.

    `speccompile RECIPE` is short for `speccompile compile RECIPE`, whose --help lists its options.

    \b
    speccompile list
    speccompile smollm2 -o my.bundle
    speccompile OWNER/NAME --draft OWNER/NAME
    """


@click.command(cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--verify", is_flag=True, help="Check the hash of every file; exit code 2 if one differs.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object instead of text.")
def inspect(bundle: Path, *, verify: bool, json_output: bool) -> None:
    """Show what BUNDLE holds."""
    opened = Bundle.open(bundle)
    changed = list(opened.changed_files()) if verify else []
    if json_output:
        print_json(as_json(bundle, opened.manifest) | ({"changed_files": changed} if verify else {}))
    else:
        print_report(bundle, opened.manifest, report_console(result=True))
    if changed:
        raise CheckFailed(f"bundle {bundle}: SHA-256 differs for {', '.join(changed)}; compile it again")
    if verify and not json_output:
        report_console(result=True).print(f"all {len(opened.manifest.files)} files are what speccompile wrote")


for command in (list_recipes, explain, inspect, emit):
    main.add_command(command)


@main.command("compile", cls=GroupedCommand)
@click.argument("recipe", metavar="RECIPE|CHECKPOINT")
@option(
    MODELS,
    "--draft",
    metavar="CHECKPOINT",
    help="Draft: a folder, a GGUF file, a hub id, or mtp, the target's own layer.  [default: the recipe's, or none]",
)
@option(MODELS, "--with-baseline", is_flag=True, help="Also store the target in fp16, to compare with.")
@recipe_options
@option(
    OUTPUT,
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="BUNDLE",
    help="Write the bundle to this folder.  [default: NAME.bundle]",
)
@option(OUTPUT, "--force", is_flag=True, help="Replace an existing bundle once the new one is complete.")
@option(
    OUTPUT,
    "--emit",
    "emitted",
    type=click.Choice(["standard"]),
    help="Also emit the bundle's models as standard ONNX.",
)
@option(OUTPUT, "--json", "json_output", is_flag=True, help="Print one JSON object instead of text.")
def compile_recipe(
    recipe: str,
    *,
    draft: str | None,
    output: Path | None,
    with_baseline: bool,
    force: bool,
    emitted: str | None,
    json_output: bool,
    **options: Any,
) -> None:
    """Compile RECIPE, a TOML file or the name of a shipped one, or CHECKPOINT, into a bundle.

    CHECKPOINT is a folder, a GGUF file or a hub id.
    """
    wanted = read_recipe(recipe, draft).with_changes(**recipe_changes(options))
    output = output or Path(f"{wanted.name}.bundle")
    with needs("compile", "compiling"):
        from mxspec.compile.pipeline import compile_bundle
        from mxspec.compile.progress import Stages

    console = report_console(json_output=json_output)
    start = time.perf_counter()
    stages = Stages(console)
    with termination_as_interrupt():
        if emitted:
            check_place(place_of(output), force=force)
        manifest = compile_bundle(wanted, output, with_baseline=with_baseline, force=force, stages=stages)
        if emitted:
            write(Bundle.open(output), place_of(output), force=force, console=console, stages=stages)
    seconds = time.perf_counter() - start
    if json_output:
        times = {name: round(value, 3) for name, value in stages.seconds.items()}
        print_json(as_json(output, manifest) | {"seconds": round(seconds, 3), "stage_seconds": times})
    else:
        print_report(output, manifest, console)
        console.print(f"compiled in {seconds:.1f} s")
        print_loss(manifest.models["target"], console)
