"""The options that say how texts are written: of specrun, and of jobs on many machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mxspec.formats.sampling import PARAMETERS, Parameter
from mxspec.runtime import drafters, verifiers
from mxspec.runtime.cli.option_groups import option
from mxspec.runtime.cli.settings import parse_bias, parse_early_stopping, parse_k

LENGTH, SAMPLING, GRAMMAR = "Length", "Sampling (default: what the bundle says)", "Grammar"
SPEED, BEAMS = "Speculation and speed", "Beam search"

Function = TypeVar("Function", bound=Callable[..., Any])


def sampling_option(name: str, parameter: Parameter) -> Callable[[Function], Function]:
    """The option of a sampling parameter, by its declaration."""
    option_name = f"--{name.replace('_', '-')}"
    if parameter.kind == "bias":
        return option(
            SAMPLING, option_name, multiple=True, callback=parse_bias, metavar="ID=VALUE", help=parameter.help
        )
    return option(SAMPLING, option_name, type=int if parameter.kind == "integer" else float, help=parameter.help)


OPTIONS = (
    option(LENGTH, "--max-new-tokens", type=int, help="[default: 128; in a chat what the context holds]"),
    option(LENGTH, "--min-new-tokens", type=int, help="No end of text before."),
    option(LENGTH, "--stop", multiple=True, metavar="TEXT", help="End before this text; may be given several times."),
    option(LENGTH, "--ignore-eos", is_flag=True, default=None, help="Go on after an end of text."),
    *(sampling_option(name, parameter) for name, parameter in PARAMETERS.items()),
    option(SAMPLING, "--n", type=int, help="Write so many samples.  [default: 1]"),
    option(SAMPLING, "--best-of", type=int, help="Write so many, and keep the likeliest."),
    option(BEAMS, "--beams", type=int, help="Find the likeliest texts with so many beams, the best n."),
    option(BEAMS, "--length-penalty", type=float, help="Above 0 long texts gain, below 0 short ones.  [default: 1]"),
    option(
        BEAMS,
        "--early-stopping",
        callback=parse_early_stopping,
        metavar="true|false|never",
        help="End with the first texts, when the best beam is worse, or when none can be better.  [default: false]",
    ),
    option(BEAMS, "--draft-beams", type=int, help="Of the draft's own search, with --k.  [default: twice as many]"),
    option(GRAMMAR, "--json-schema", metavar="FILE|TEXT", help="Write a JSON value of this schema."),
    option(GRAMMAR, "--regex", metavar="PATTERN", help="Write what matches this regular expression."),
    option(GRAMMAR, "--lark", metavar="FILE", help="Write a sentence of this Lark grammar."),
    option(
        SPEED,
        "--k",
        callback=parse_k,
        metavar="INTEGER|auto",
        help="Tokens to draft a round; auto: by what it costs.  [default: auto where no text changes by it, else 4]",
    ),
    option(
        SPEED,
        "--drafter",
        type=click.Choice(drafters.NAMES),
        help="Who guesses.  [default: model, or suffix without a draft]",
    ),
    option(
        SPEED,
        "--verifier",
        type=click.Choice(["auto", *verifiers.NAMES]),
        help="Which guesses sampled text keeps; match: a seed means one text.  [default: auto]",
    ),
    option(
        SPEED,
        "--proposal",
        type=click.Choice(["sampled", "greedy"]),
        help="Guesses are drawn, or the draft's likeliest.  [default: what is kept more]",
    ),
    option(SPEED, "--draft-temperature", type=float, help="Of the draft alone.  [default: the text's]"),
    option(SPEED, "--lenience", type=float, help="Below 1, more is kept and the text is not lossless.  [default: 1]"),
)


def request_options(function: Function) -> Function:
    """Declare them all, in their order."""
    for add in reversed(OPTIONS):
        function = add(function)
    return function
