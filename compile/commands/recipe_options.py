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
_FILE, _COUNT = click.Path(path_type=Path), click.IntRange(min=1)

Function = TypeVar("Function", bound=Callable[..., Any])

_TIED_HELP = "embedding and its head once or twice.  [default: once where nothing is lost]"
_AGAIN = "May be given several times."

# By group: the option, its key in a recipe (`draft.format` is `format` in the table `draft`), what it takes, its help.
_Row = tuple[str, str, Any, str]
_OPTIONS: dict[str, tuple[_Row, ...]] = {
    MODELS: (
        ("--adapter ADAPTER", "target.adapter", from_here, "LoRA adapter for the target: a folder or a hub id."),
        ("--from-pickle", "from_pickle", bool, "Read weights that exist only as pickles; no code is run."),
    ),
    FORMATS: (
        ("--target-format", "target.format", _FORMATS, "Format of the target's matrices.  [default: mxfp6_e2m3]"),
        ("--draft-format", "draft.format", _FORMATS, "Format of the draft's matrices.  [default: fp16]"),
        (
            "--matrix-format PATTERN FORMAT",
            "target.formats",
            [(str, _FORMATS)],
            "Format of the target's matrices whose names match PATTERN; of several patterns the first that matches "
            f"counts. {_AGAIN}",
        ),
        (
            "--keep-fp16 PATTERN",
            "target.keep_fp16",
            [str],
            f"Keep the target's matrices whose names match PATTERN in fp16. {_AGAIN}",
        ),
        (
            "--activations",
            "target.activations",
            _ACTIVATIONS,
            "Type that the inputs of the target's products are rounded to.  [default: int16]",
        ),
        (
            "--draft-activations",
            "draft.activations",
            _ACTIVATIONS,
            "Type that the inputs of the draft's products are rounded to.  [default: int16]",
        ),
        ("--tied", "target.tied", _TIED, f"Store a matrix that is both the target's {_TIED_HELP}"),
        ("--draft-tied", "draft.tied", _TIED, f"Store a matrix that is both the draft's {_TIED_HELP}"),
    ),
    BUDGET: (
        (
            "--budget BITS",
            "target.budget",
            str,
            "Choose the target's formats for this average size of a weight, such as 5.2bpw.",
        ),
        (
            "--max-ratio",
            "target.max_ratio",
            click.FloatRange(min=1, min_open=True),
            "Choose the target's formats so that its perplexity is at most this many times that of fp16.",
        ),
        (
            "--allow",
            "target.allowed_formats",
            [_FORMATS],
            f"Format that --budget or --max-ratio may choose. {_AGAIN}  [default: all MX formats]",
        ),
    ),
    ROUNDING: (
        (
            "--rounding",
            "rounding",
            click.Choice(ROUNDINGS),
            "How weights are rounded to an MX format.  [default: auto]",
        ),
        (
            "--rounding-minutes MINUTES",
            "rounding_minutes",
            click.FloatRange(min=0),
            "Minutes on two cores for --rounding auto: they bound its tokens, on any machine.  [default: 20]",
        ),
        (
            "--calibrate TEXT",
            "calibrate",
            _FILE,
            "Text that calibrates gptq and budgets.  [default: for gptq, the model writes one]",
        ),
        (
            "--calibration-tokens",
            "calibration_tokens",
            _COUNT,
            "Tokens to calibrate on; --rounding auto may take fewer.  [default: 24576]",
        ),
        (
            "--max-loss PERCENT",
            "max_loss",
            click.FloatRange(min=0),
            "Fail if the target loses more than this of its perplexity, measured on text that it writes.",
        ),
        ("--seed", "seed", click.IntRange(min=0), "Seed of the text to calibrate on.  [default: 0]"),
    ),
    DRAFTING: (
        (
            "--draft-vocabulary N",
            "draft.vocabulary",
            _COUNT,
            "Number of tokens that the draft may propose: its head keeps only their rows.  [default: all]",
        ),
        (
            "--draft-text TEXT",
            "draft.text",
            _FILE,
            "Text whose most frequent tokens --draft-vocabulary keeps, and by which --draft-tokens is chosen.  "
            "[default: for the vocabulary, the target writes one]",
        ),
        (
            "--draft-tokens",
            "draft.tokens",
            click.Choice(DRAFT_TOKENS),
            "What a draft with another tokenizer proposes: shared tokens (tli), or its text.  [default: by the share "
            "of its tokens that the target has]",
        ),
        ("--ngram TEXT", "ngram", _FILE, "Text for the tables of the drafter ngram."),
        ("--suffix TEXT", "suffix", _FILE, "Text for the index of the drafter suffix."),
        ("--k-max", "k_max", _COUNT, "Most tokens that are drafted in a round.  [default: 8]"),
    ),
    LIMITS: (
        (
            "--context-length",
            "context_length",
            _COUNT,
            "Most tokens of a prompt and its answer.  [default: the target's]",
        ),
        ("--caches", "caches", click.Choice(CACHE_KINDS), "Type of the key-value caches.  [default: float16]"),
    ),
}


def recipe_options(function: Function) -> Function:
    """Add all these options to a command, in their order."""
    rows = [(group, *row) for group, rows in _OPTIONS.items() for row in rows]
    for group, written, key, kind, said in reversed(rows):
        flag, _, metavar = written.partition(" ")
        takes = {"is_flag": True, "default": None} if kind is bool else {"type": kind}
        if isinstance(kind, list):
            takes = {"type": kind[0], "multiple": True}
        name = key.replace(".", "__")
        function = option(group, flag, name, metavar=metavar or None, help=said, **takes)(function)
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
