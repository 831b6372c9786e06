"""speccompile: list and explain recipes, compile, inspect a bundle, or emit it for other programs."""

from __future__ import annotations

import time
from pathlib import Path

import click

from mxspec.compile.commands.emit import FORMS, check_place, emit, place_of, write
from mxspec.compile.commands.explain import explain
from mxspec.compile.commands.inspect import inspect
from mxspec.compile.commands.list_recipes import list_recipes
from mxspec.compile.commands.report import as_json, print_report
from mxspec.compile.commands.termination import termination_as_interrupt
from mxspec.compile.interchange.folder import Form
from mxspec.formats.bundle import Bundle
from mxspec.formats.caches import CACHE_KINDS
from mxspec.formats.errors import MxspecError
from mxspec.formats.weight_format import ACTIVATIONS, USER_NAMES
from mxspec.recipes.find_recipe import read_recipe
from mxspec.recipes.recipe import DRAFT_TOKENS, ROUNDINGS, TIED, from_here
from mxspec.runtime.cli.command import Command, Group, print_json, report_console

_FORMATS = click.Choice(USER_NAMES)
_ACTIVATIONS = click.Choice(ACTIVATIONS)
_TIED = click.Choice(TIED)


class _CompileByDefault(Group):
    """Treats an argument that is not a command as the recipe to compile, or as an option of compile."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = not args or args[0] in self.commands or args[0] in self.get_help_option_names(ctx)
        return super().parse_args(ctx, args if known else ["compile", *args])


@click.group(cls=_CompileByDefault, subcommand_metavar="RECIPE | CHECKPOINT | COMMAND [ARGS]...")
def main() -> None:
    """Compile a RECIPE or a CHECKPOINT into a bundle, or inspect and export a bundle.

    `speccompile RECIPE` is short for `speccompile compile RECIPE`, whose --help lists its options.

    \b
    speccompile list
    speccompile smollm2 -o my.bundle
    speccompile OWNER/NAME --draft OWNER/NAME
    """


for command in (list_recipes, explain, inspect, emit):
    main.add_command(command)


@main.command("compile", cls=Command)
@click.argument("recipe", metavar="RECIPE|CHECKPOINT")
@click.option("--draft", metavar="CHECKPOINT", help="The draft: a folder or a hub id. [the recipe's, or none]")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write the bundle. [NAME.bundle]")
@click.option("--adapter", metavar="ADAPTER", help="A LoRA adapter for the target: a folder or a hub id.")
@click.option("--from-pickle", is_flag=True, help="Read weights that exist only as pickles; no code is run.")
@click.option("--target-format", type=_FORMATS, help="Format of the target's matrices. [mxfp6_e3m2]")
@click.option("--draft-format", type=_FORMATS, help="Format of the draft's matrices. [fp16]")
@click.option(
    "--matrix-format",
    type=(str, _FORMATS),
    multiple=True,
    metavar="PATTERN FORMAT",
    help="Format of the target parameters that a pattern names, the first that matches; repeatable.",
)
@click.option("--activations", type=_ACTIVATIONS, help="What the target's products make of their rows. [int16]")
@click.option("--draft-activations", type=_ACTIVATIONS, help="What the draft's products make of their rows. [int16]")
@click.option("--tied", type=_TIED, help="Copies of a target's tied embedding and head. [once where exact]")
@click.option(
    "--draft-tied",
    type=_TIED,
    help="Copies of a draft's tied embedding and head. [once where exact]",
)
@click.option(
    "--draft-vocabulary",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of tokens that the draft may propose: its head keeps their rows. [all]",
)
@click.option(
    "--draft-text",
    type=click.Path(path_type=Path),
    metavar="TEXT",
    help="Text whose most frequent tokens --draft-vocabulary keeps. [the target writes one]",
)
@click.option(
    "--draft-tokens",
    type=click.Choice(DRAFT_TOKENS),
    help="What a draft with another tokenizer proposes: shared tokens (tli), or its text. [by the share of its tokens]",
)
@click.option("--keep-fp16", multiple=True, metavar="PATTERN", help="Target parameters to keep in fp16; repeatable.")
@click.option("--budget", metavar="BITS", help="Choose the target's formats for this average a weight, such as 5.2bpw.")
@click.option(
    "--max-ratio",
    type=click.FloatRange(min=1, min_open=True),
    help="Choose the target's formats for this ratio of perplexities, packed to fp16.",
)
@click.option(
    "--allow",
    type=_FORMATS,
    multiple=True,
    help="A format that a budget may choose; repeatable. [all MX formats]",
)
@click.option("--with-baseline", is_flag=True, help="Also store the target in fp16, to compare with.")
@click.option("--rounding", type=click.Choice(ROUNDINGS), help="How weights are rounded to an MX format. [auto]")
@click.option(
    "--rounding-minutes",
    type=click.FloatRange(min=0),
    metavar="MINUTES",
    help="Time that --rounding auto may take, and measuring accuracy a fifth of it. [10]",
)
@click.option(
    "--calibrate",
    type=click.Path(path_type=Path),
    metavar="TEXT",
    help="Text that calibrates gptq and budgets. [for gptq, the model writes one]",
)
@click.option("--calibration-tokens", type=click.IntRange(min=1), help="Tokens of text to calibrate on. [24576]")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the text to calibrate on. [0]")
@click.option("--ngram", type=click.Path(path_type=Path), metavar="TEXT", help="Text for the tables of drafter ngram.")
@click.option("--suffix", type=click.Path(path_type=Path), metavar="TEXT", help="Text for the index of drafter suffix.")
@click.option("--k-max", type=click.IntRange(min=1), help="Largest number of tokens drafted in a round.")
@click.option("--context-length", type=click.IntRange(min=1), help="Largest number of tokens of prompt and answer.")
@click.option("--caches", type=click.Choice(CACHE_KINDS), help="What key-value caches hold. [float16]")
@click.option("--force", is_flag=True, help="Replace an existing bundle once the new one is complete.")
@click.option(
    "--emit",
    "emitted",
    type=click.Choice(FORMS),
    multiple=True,
    help="Also emit this ONNX form; repeatable.",
)
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object instead of text.")
def compile_recipe(
    recipe: str,
    *,
    draft: str | None,
    output: Path | None,
    adapter: str | None,
    from_pickle: bool,
    target_format: str | None,
    draft_format: str | None,
    matrix_format: tuple[tuple[str, str], ...],
    activations: str | None,
    draft_activations: str | None,
    tied: str | None,
    draft_tied: str | None,
    draft_vocabulary: int | None,
    draft_text: Path | None,
    draft_tokens: str | None,
    keep_fp16: tuple[str, ...],
    budget: str | None,
    max_ratio: float | None,
    allow: tuple[str, ...],
    with_baseline: bool,
    rounding: str | None,
    rounding_minutes: float | None,
    calibrate: Path | None,
    calibration_tokens: int | None,
    seed: int | None,
    ngram: Path | None,
    suffix: Path | None,
    k_max: int | None,
    context_length: int | None,
    caches: str | None,
    force: bool,
    emitted: tuple[Form, ...],
    json_output: bool,
) -> None:
    """Compile RECIPE, a TOML file or the name of a shipped one, or CHECKPOINT, a folder or a hub id, into a bundle."""
    wanted = read_recipe(recipe, draft).with_changes(
        k_max=k_max,
        context_length=context_length,
        caches=caches,
        rounding=rounding,
        rounding_minutes=rounding_minutes,
        calibrate=None if calibrate is None else str(calibrate.absolute()),
        calibration_tokens=calibration_tokens,
        seed=seed,
        from_pickle=from_pickle or None,
        ngram=None if ngram is None else str(ngram.absolute()),
        suffix=None if suffix is None else str(suffix.absolute()),
        target={
            "adapter": None if adapter is None else from_here(adapter),
            "format": target_format,
            "formats": list(matrix_format) or None,
            "keep_fp16": list(keep_fp16) or None,
            "budget": budget,
            "max_ratio": max_ratio,
            "allowed_formats": list(allow) or None,
            "activations": activations,
            "tied": tied,
        },
        draft={
            "format": draft_format,
            "activations": draft_activations,
            "tied": draft_tied,
            "vocabulary": draft_vocabulary,
            "text": None if draft_text is None else str(draft_text.absolute()),
            "tokens": draft_tokens,
        },
    )
    output = output or Path(f"{wanted.name}.bundle")
    try:
        from mxspec.compile.pipeline import compile_bundle
        from mxspec.compile.progress import Stages
    except ModuleNotFoundError as missing:
        raise MxspecError(f"compiling needs {missing.name}: pip install 'mxspec[compile]'") from None

    console = report_console(json_output=json_output)
    start = time.perf_counter()
    stages = Stages(console)
    with termination_as_interrupt():
        for kind in emitted:
            check_place(kind, place_of(output, kind), force=force)
        manifest = compile_bundle(wanted, output, with_baseline=with_baseline, force=force, stages=stages)
        for kind in emitted:
            write(kind, Bundle.open(output), place_of(output, kind), force=force, console=console, stages=stages)
    seconds = time.perf_counter() - start
    if json_output:
        times = {name: round(value, 3) for name, value in stages.seconds.items()}
        print_json(as_json(output, manifest) | {"seconds": round(seconds, 3), "stage_seconds": times})
    else:
        print_report(output, manifest, console)
        console.print(f"compiled in {seconds:.1f} s")
