"""The options of specrun and specbatch that say how texts are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mxspec.formats.sampling import PARAMETERS, Parameter
from mxspec.runtime import drafters, verifiers
from mxspec.runtime.cli.option_groups import option
from mxspec.runtime.cli.settings import parse_bias, parse_early_stopping, parse_k

CHAT, LENGTH, SAMPLING, GRAMMAR = "Chat", "Length", "Sampling (default: what the bundle says)", "Grammar"
SPEED, BEAMS = "Speculation and speed", "Beam search"

Function = TypeVar("Function", bound=Callable[..., Any])


def sampling_option(name: str, parameter: Parameter) -> Callable[[Function], Function]:
    """The option of a sampling parameter, made from its declaration."""
    option_name = f"--{name.replace('_', '-')}"
    if parameter.kind == "bias":
        return option(
            SAMPLING, option_name, multiple=True, callback=parse_bias, metavar="ID=VALUE", help=parameter.help
        )
    return option(SAMPLING, option_name, type=int if parameter.kind == "integer" else float, help=parameter.help)


OPTIONS = (
    option(
        CHAT,
        "--typed-control-tokens",
        type=click.Choice(["control", "text"]),
        help="What a control token in a message, such as <|im_end|>, is: the control token, as in transformers, or "
        "plain text.  [default: control]",
    ),
    option(
        LENGTH,
        "--max-new-tokens",
        type=int,
        help="Most tokens to write.  [default: 128; in a chat all that the context holds]",
    ),
    option(
        LENGTH, "--min-new-tokens", type=int, help="Fewest tokens to write: the text does not end before.  [default: 0]"
    ),
    option(
        LENGTH,
        "--stop",
        multiple=True,
        metavar="TEXT",
        help="End the answer before this text. May be given several times.",
    ),
    option(LENGTH, "--ignore-eos", is_flag=True, default=None, help="Go on writing after an end-of-text token."),
    *(sampling_option(name, parameter) for name, parameter in PARAMETERS.items()),
    option(SAMPLING, "--n", type=int, help="Number of samples to write.  [default: 1]"),
    option(
        SAMPLING,
        "--best-of",
        type=int,
        help="Number of samples to write, of which the likeliest are kept.  [default: n]",
    ),
    option(
        BEAMS,
        "--beams",
        type=int,
        help="Number of beams of a beam search; the n best texts are written.  [default: 1, no search]",
    ),
    option(
        BEAMS,
        "--length-penalty",
        type=float,
        help="Length penalty of a beam search: above 0 favours long texts, below 0 short.  [default: 1]",
    ),
    option(
        BEAMS,
        "--early-stopping",
        callback=parse_early_stopping,
        metavar="true|false|never",
        help="When a beam search ends. true: with the first finished texts; false: when no beam is better; never: when "
        "no beam can get better.  [default: false]",
    ),
    option(
        BEAMS,
        "--draft-beams",
        type=int,
        help="Number of beams of the draft's own search, with --k.  [default: twice the number of beams]",
    ),
    option(GRAMMAR, "--json-schema", metavar="FILE|TEXT", help="Write JSON that is valid under this JSON schema."),
    option(GRAMMAR, "--regex", metavar="PATTERN", help="Write text that matches this regular expression."),
    option(GRAMMAR, "--lark", metavar="FILE", help="Write text that this Lark grammar accepts."),
    option(
        SPEED,
        "--k",
        callback=parse_k,
        metavar="INTEGER|auto",
        help="Number of tokens drafted in a round; auto: by measured cost. Beam search drafts only by a number.  "
        "[default: auto where it changes no text, else 4; 0 with --beams]",
    ),
    option(
        SPEED,
        "--drafter",
        type=click.Choice(drafters.NAMES),
        help="Method that drafts tokens.  [default: model, or suffix in a bundle without a draft]",
    ),
    option(
        SPEED,
        "--verifier",
        type=click.Choice(["auto", *verifiers.NAMES]),
        help="Rule by which drafted tokens of sampled text are accepted; with match a seed always means one text.  "
        "[default: auto]",
    ),
    option(
        SPEED,
        "--proposal",
        type=click.Choice(["sampled", "greedy"]),
        help="Whether drafted tokens are sampled, or the draft's likeliest.  [default: what is accepted more often]",
    ),
    option(
        SPEED,
        "--draft-temperature",
        type=float,
        help="Temperature of the draft model alone.  [default: that of the text]",
    ),
    option(
        SPEED,
        "--lenience",
        type=float,
        help="Below 1, more drafted tokens are accepted, and the text is not the target's own.  [default: 1]",
    ),
)


def request_options(function: Function) -> Function:
    """Add all these options to a command, in their order."""
    for add in reversed(OPTIONS):
        function = add(function)
    return function
