"""The options of `speccompile compile` that change a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from mxspec.formats.caches import CACHE_KINDS
from mxspec.formats.weight_format import ACTIVATIONS, USER_NAMES
from mxspec.recipes.recipe import DRAFT_TOKENS, ROUNDINGS, TIED, from_here
from mxspec.runtime.cli.option_groups import option

MODELS, FORMATS, BUDGET = "Models", "Formats", "Formats by a budget"
ROUNDING, DRAFTING, LIMITS = "Rounding and calibration", "Drafting", "Limits and caches"

_FORMATS, _ACTIVATIONS, _TIED = click.Choice(USER_NAMES), click.Choice(ACTIVATIONS), click.Choice(TIED)
_FILE = click.Path(path_type=Path)

Function = TypeVar("Function", bound=Callable[..., Any])


def _place_of(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    return None if value is None else from_here(value)


# The second name of an option is its key in a recipe: `target__format` is `format` in the table `target`.
OPTIONS = (
    option(
        MODELS,
        "--adapter",
        "target__adapter",
        metavar="ADAPTER",
        callback=_place_of,
        help="LoRA adapter for the target: a folder or a hub id.",
    ),
    option(
        MODELS,
        "--from-pickle",
        is_flag=True,
        default=None,
        help="Read weights that exist only as pickles; no code is run.",
    ),
    option(
        FORMATS,
        "--target-format",
        "target__format",
        type=_FORMATS,
        help="Format of the target's matrices.  [default: mxfp6_e3m2]",
    ),
    option(
        FORMATS,
        "--draft-format",
        "draft__format",
        type=_FORMATS,
        help="Format of the draft's matrices.  [default: fp16]",
    ),
    option(
        FORMATS,
        "--matrix-format",
        "target__formats",
        type=(str, _FORMATS),
        multiple=True,
        metavar="PATTERN FORMAT",
        help="Format of the target's matrices whose names match PATTERN; of several patterns the first that matches "
        "counts. May be given several times.",
    ),
    option(
        FORMATS,
        "--keep-fp16",
        "target__keep_fp16",
        multiple=True,
        metavar="PATTERN",
        help="Keep the target's matrices whose names match PATTERN in fp16. May be given several times.",
    ),
    option(
        FORMATS,
        "--activations",
        "target__activations",
        type=_ACTIVATIONS,
        help="Type that the inputs of the target's products are rounded to.  [default: int16]",
    ),
    option(
        FORMATS,
        "--draft-activations",
        "draft__activations",
        type=_ACTIVATIONS,
        help="Type that the inputs of the draft's products are rounded to.  [default: int16]",
    ),
    option(
        FORMATS,
        "--tied",
        "target__tied",
        type=_TIED,
        help="Store a matrix that is both the target's embedding and its head once or twice.  [default: once where "
        "nothing is lost]",
    ),
    option(
        FORMATS,
        "--draft-tied",
        "draft__tied",
        type=_TIED,
        help="Store a matrix that is both the draft's embedding and its head once or twice.  [default: once where "
        "nothing is lost]",
    ),
    option(
        BUDGET,
        "--budget",
        "target__budget",
        metavar="BITS",
        help="Choose the target's formats for this average size of a weight, such as 5.2bpw.",
    ),
    option(
        BUDGET,
        "--max-ratio",
        "target__max_ratio",
        type=click.FloatRange(min=1, min_open=True),
        help="Choose the target's formats so that its perplexity is at most this many times that of fp16.",
    ),
    option(
        BUDGET,
        "--allow",
        "target__allowed_formats",
        type=_FORMATS,
        multiple=True,
        help="Format that --budget or --max-ratio may choose. May be given several times.  [default: all MX formats]",
    ),
    option(
        ROUNDING,
        "--rounding",
        type=click.Choice(ROUNDINGS),
        help="How weights are rounded to an MX format.  [default: auto]",
    ),
    option(
        ROUNDING,
        "--rounding-minutes",
        type=click.FloatRange(min=0),
        metavar="MINUTES",
        help="Minutes on two cores for --rounding auto: they bound its tokens, on any machine.  [default: 20]",
    ),
    option(
        ROUNDING,
        "--calibrate",
        type=_FILE,
        metavar="TEXT",
        help="Text that calibrates gptq and budgets.  [default: for gptq, the model writes one]",
    ),
    option(
        ROUNDING,
        "--calibration-tokens",
        type=click.IntRange(min=1),
        help="Tokens to calibrate on; --rounding auto may take fewer.  [default: 24576]",
    ),
    option(ROUNDING, "--seed", type=click.IntRange(min=0), help="Seed of the text to calibrate on.  [default: 0]"),
    option(
        DRAFTING,
        "--draft-vocabulary",
        "draft__vocabulary",
        type=click.IntRange(min=1),
        metavar="N",
        help="Number of tokens that the draft may propose: its head keeps only their rows.  [default: all]",
    ),
    option(
        DRAFTING,
        "--draft-text",
        "draft__text",
        type=_FILE,
        metavar="TEXT",
        help="Text whose most frequent tokens --draft-vocabulary keeps, and by which --draft-tokens is chosen.  "
        "[default: for the vocabulary, the target writes one]",
    ),
    option(
        DRAFTING,
        "--draft-tokens",
        "draft__tokens",
        type=click.Choice(DRAFT_TOKENS),
        help="What a draft with another tokenizer proposes: shared tokens (tli), or its text.  [default: by the share "
        "of its tokens that the target has]",
    ),
    option(DRAFTING, "--ngram", type=_FILE, metavar="TEXT", help="Text for the tables of the drafter ngram."),
    option(DRAFTING, "--suffix", type=_FILE, metavar="TEXT", help="Text for the index of the drafter suffix."),
    option(
        DRAFTING,
        "--k-max",
        type=click.IntRange(min=1),
        help="Most tokens that are drafted in a round.  [default: 8]",
    ),
    option(
        LIMITS,
        "--context-length",
        type=click.IntRange(min=1),
        help="Most tokens of a prompt and its answer.  [default: the target's]",
    ),
    option(
        LIMITS, "--caches", type=click.Choice(CACHE_KINDS), help="Type of the key-value caches.  [default: float16]"
    ),
)


def recipe_options(function: Function) -> Function:
    """Add all these options to a command, in their order."""
    for add in reversed(OPTIONS):
        function = add(function)
    return function


def recipe_changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """What Recipe.with_changes() takes; options that were not given are None there, and change nothing."""
    tables: dict[str, dict[str, Any]] = {"": {}, "target": {}, "draft": {}}
    for name, value in given.items():
        table, _, key = name.rpartition("__")
        tables[table][key] = _written(value)
    return tables.pop("") | tables


def _written(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value.absolute())
    return None if value == () else value
