"""The base of every command of mxspec: exit codes, one-line errors, and where tables and progress go.

| exit code | meaning                                                   |
|-----------|-----------------------------------------------------------|
| 0         | done                                                      |
| 1         | usage error or bad input (click's own 2 is overridden)    |
| 2         | a check ran to its end and failed                         |
| 130       | Ctrl-C                                                    |
| 141       | broken pipe: the reader of standard output has closed it  |

Write `@click.command(cls=Command)` (or `@click.group(cls=Group)`), raise `MxspecError` for a user's mistake and
`CheckFailed` for a failed check; any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console

from mxspec.formats.errors import CheckFailed, MxspecError
from mxspec.runtime.cli.interrupts import EXIT_INTERRUPTED
from mxspec.runtime.cli.output import OutputError, checked_output
from mxspec.runtime.cli.plain_console import PlainConsole, visible

EXIT_BAD_INPUT = 1
EXIT_CHECK_FAILED = 2
LONGEST_ERROR = 1000  # characters: a tensor's name can have a million
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, as a shell reports it


class Command(click.Command):
    """A command that ends in one of the exit codes above, with at most one line on standard error."""

    def main(  # type: ignore[override]  # click's overloads say that standalone mode never returns; the same holds here
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, standalone_mode=False, **extra)
        try:
            with checked_output():
                result = super().main(args, prog_name, standalone_mode=False, **extra)
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else "the command"
            _fail(f"{error.format_message()} (see {command} --help)", EXIT_BAD_INPUT)
        except click.ClickException as error:
            _fail(error.format_message(), EXIT_BAD_INPUT)
        except CheckFailed as error:
            _fail(str(error), EXIT_CHECK_FAILED)
        except MxspecError as error:
            _fail(str(error), EXIT_BAD_INPUT)
        except OutputError as error:
            if error.broken_pipe:
                sys.exit(EXIT_BROKEN_PIPE)
            _fail(str(error), EXIT_BAD_INPUT)
        except (click.Abort, KeyboardInterrupt):
            _fail("interrupted", EXIT_INTERRUPTED)
        sys.exit(result if isinstance(result, int) else 0)  # click returns the code of ctx.exit(): 0 for --help

    def get_short_help_str(self, limit: int = 45) -> str:
        """The whole first sentence, for a list of commands; click would cut it to one line."""
        return super().get_short_help_str(len(self.help or ""))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click's parser sets no context if an option lacks its argument
            raise


class Group(Command, click.Group):
    """A group of commands that end in one of these exit codes; without arguments it shows its help."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)


def _fail(message: str, exit_code: int) -> NoReturn:
    line = visible(" ".join(message.split()))
    click.echo(f"error: {line if len(line) <= LONGEST_ERROR else line[:LONGEST_ERROR] + '…'}", err=True)
    sys.exit(exit_code)


def read_text(path: Path, option: str) -> str:
    """The text of the UTF-8 file that an option names; raises MxspecError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise MxspecError(f"{option} {path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise MxspecError(f"{option} {path}: cannot be read as UTF-8 text: {error}") from None


def report_console(*, json_output: bool = False, result: bool = False) -> Console:
    """Where tables and progress go: standard output on a terminal, standard error when output is piped or is JSON.

    What a command was asked for, its `result`, goes to standard output unless that has JSON.
    """
    return PlainConsole(stderr=json_output or not (result or sys.stdout.isatty()))


def print_json(report: Mapping[str, Any]) -> None:
    """Print the one object of `--json` on standard output, on one line."""
    click.echo(json.dumps(report, ensure_ascii=False, allow_nan=False))
