"""The options that say how texts are written: of specrun, and of jobs on many machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mxspec.runtime import drafters, verifiers
from mxspec.runtime.cli.option_groups import option
from mxspec.runtime.cli.settings import parse_bias, parse_early_stopping, parse_k

LENGTH, SAMPLING, GRAMMAR = "Length", "Sampling (default: what the bundle says)", "Grammar"
SPEED, BEAMS = "Speculation and speed", "Beam search"

Function = TypeVar("Function", bound=Callable[..., Any])

OPTIONS = (
    option(LENGTH, "--max-new-tokens", type=int, help="[default: 128; in a chat what the context holds]"),
    option(LENGTH, "--min-new-tokens", type=int, help="No end of text before."),
    option(LENGTH, "--stop", multiple=True, metavar="TEXT", help="End before this text; may be given several times."),
    option(LENGTH, "--ignore-eos", is_flag=True, default=None, help="Go on after an end of text."),
    option(SAMPLING, "--temperature", type=float, help="0 is greedy: the likeliest token."),
    option(SAMPLING, "--top-k", type=int, help="Only the K likeliest tokens; 0 is off."),
    option(SAMPLING, "--top-p", type=float, help="Only the likeliest tokens of this probability together; 1 is off."),
    option(SAMPLING, "--min-p", type=float, help="Only tokens of this share of the likeliest one's; 0 is off."),
    option(SAMPLING, "--typical-p", type=float, help="Only the most typical of this probability together; 1 is off."),
    option(SAMPLING, "--repetition-penalty", type=float, help="Divide the logits of tokens that were there; 1 is off."),
    option(SAMPLING, "--no-repeat-ngram-size", type=int, help="No sequence of so many tokens comes twice; 0 is off."),
    option(SAMPLING, "--presence-penalty", type=float, help="Lower the logits of tokens written before; 0 is off."),
    option(SAMPLING, "--frequency-penalty", type=float, help="The same, as often as they were written; 0 is off."),
    option(
        SAMPLING,
        "--logit-bias",
        multiple=True,
        callback=parse_bias,
        metavar="ID=VALUE",
        help="Add to the logit of a token; -inf forbids it. May be given several times.",
    ),
    option(SAMPLING, "--seed", type=int, help="Where random numbers come from.  [default: drawn, and reported]"),
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
