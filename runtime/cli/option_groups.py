"""Options that --help shows in groups, in the order in which they are declared, and sizes as their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from pydantic import ByteSize, TypeAdapter, ValidationError

from mxspec.runtime.cli.command import Command

OTHERS = "Other options"

_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
Function = TypeVar("Function", bound=Callable[..., Any])


class GroupedOption(click.Option):
    """An option that --help shows in a group."""

    def __init__(self, *names: Any, group: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.group = group


class GroupedCommand(Command):
    """A command whose --help has a section for each group; options without a group come last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                sections.setdefault(getattr(parameter, "group", OTHERS), []).append(record)
        others = sections.pop(OTHERS)
        for title, records in [*sections.items(), (OTHERS, others)]:
            with formatter.section(title):
                formatter.write_dl(records)


def option(group: str, *names: str, **settings: Any) -> Callable[[Function], Function]:
    """Like click.option, for an option of a group."""
    return click.option(*names, cls=GroupedOption, group=group, **settings)


def names_given() -> set[str]:
    """The options and arguments that the command was called with, as they are written: --chat, PROMPT."""
    context = click.get_current_context()
    given = [each for each in context.command.params if context.get_parameter_source(each.name or "") in _GIVEN]
    return {each.opts[-1] if isinstance(each, click.Option) else each.human_readable_name for each in given}


_SIZES = TypeAdapter(ByteSize)


class Bytes(click.ParamType[int]):
    """A number of bytes with its unit; an int."""

    name = "size"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        try:
            size = int(_SIZES.validate_python(value))
        except ValidationError:
            size = 0
        if size < 1:
            self.fail(f"got {value!r}, expected a number of bytes such as 2GiB or 500MB", parameter, context)
        return size
