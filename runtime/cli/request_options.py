"""The options of specrun and specbatch that say how texts are written, from the declarations of settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mxspec.formats.sampling import PARAMETERS, Parameter
from mxspec.runtime.cli.option_groups import option
from mxspec.runtime.cli.settings import parse_bias, parse_early_stopping, parse_k
from mxspec.runtime.settings import BEAMS, CHAT, GRAMMAR, LENGTH, SAMPLING, SETTINGS, SPEED, Kind

Function = TypeVar("Function", bound=Callable[..., Any])

_KINDS: dict[Kind, dict[str, Any]] = {
    "integer": {"type": int},
    "number": {"type": float},
    "flag": {"is_flag": True, "default": None},
    "k": {"callback": parse_k, "metavar": "INTEGER|auto"},
    "early_stopping": {"callback": parse_early_stopping, "metavar": "true|false|never"},
    "texts": {"multiple": True, "metavar": "TEXT"},
}


def _named(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def sampling_option(name: str, parameter: Parameter) -> Callable[[Function], Function]:
    """The option of a sampling parameter, made from its declaration."""
    if parameter.kind == "bias":
        return option(
            SAMPLING, _named(name), multiple=True, callback=parse_bias, metavar="ID=VALUE", help=parameter.help
        )
    return option(SAMPLING, _named(name), type=int if parameter.kind == "integer" else float, help=parameter.help)


def setting_option(name: str) -> Callable[[Function], Function]:
    """The option of another setting, made from its declaration."""
    setting = SETTINGS[name]
    given = {"type": click.Choice(setting.choices)} if setting.kind == "choice" else _KINDS[setting.kind]
    return option(setting.group, _named(name), help=setting.help, **given)


def _of(group: str) -> list[Callable[[Function], Function]]:
    return [setting_option(name) for name, setting in SETTINGS.items() if setting.group == group]


OPTIONS = (
    *_of(CHAT),
    *_of(LENGTH),
    *(sampling_option(name, parameter) for name, parameter in PARAMETERS.items()),
    *_of(SAMPLING),
    *_of(BEAMS),
    option(GRAMMAR, "--json-schema", metavar="FILE|TEXT", help="Write JSON that is valid under this JSON schema."),
    option(GRAMMAR, "--regex", metavar="PATTERN", help="Write text that matches this regular expression."),
    option(GRAMMAR, "--lark", metavar="FILE", help="Write text that this Lark grammar accepts."),
    *_of(SPEED),
)


def request_options(function: Function) -> Function:
    """Add all these options to a command, in their order."""
    for add in reversed(OPTIONS):
        function = add(function)
    return function
