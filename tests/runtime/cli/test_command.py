"""Exit codes and one-line errors of every command."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mxspec.formats.errors import BundleError, CheckFailed, MxspecError
from mxspec.runtime.cli.command import Command, Group, print_json, read_text, report_console


def command_that(raises: BaseException | None) -> click.Command:
    @click.command(cls=Command)
    @click.option("--number", type=int)
    def command(number: int | None) -> None:
        if raises is not None:
            raise raises

    return command


@pytest.mark.parametrize(
    ("raised", "exit_code", "line"),
    [
        (None, 0, ""),
        (BundleError("a\nb: got 1,\n expected 2"), 1, "error: a b: got 1, expected 2\n"),
        (CheckFailed("ratio 1.02 > 1.01"), 2, "error: ratio 1.02 > 1.01\n"),
        (click.ClickException("no"), 1, "error: no\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
    ],
)
def test_how_a_command_ended(raised: BaseException | None, exit_code: int, line: str) -> None:
    result = CliRunner().invoke(command_that(raised), [])
    assert result.exit_code == exit_code
    assert result.stderr.lstrip("\n") == line
    assert result.stdout == ""


@pytest.mark.parametrize("args", [["--unknown"], ["--number"], ["--number", "x"], ["surplus"]])
def test_usage_errors_exit_with_1_and_one_line_that_names_the_help(args: list[str]) -> None:
    result = CliRunner().invoke(command_that(None), args)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith(" (see command --help)\n")


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot be read: No such file or directory"), (b"\xff", "cannot be read as UTF-8 text: ")],
)
def test_a_text_that_cannot_be_read_is_one_line(tmp_path: Path, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / "text").write_bytes(content)
    with pytest.raises(MxspecError, match=f"--text .*text: {says}"):
        read_text(tmp_path / "text", "--text")


def test_bugs_keep_their_traceback() -> None:
    result = CliRunner().invoke(command_that(ZeroDivisionError()), [])
    assert isinstance(result.exception, ZeroDivisionError)


def test_help_exits_with_0() -> None:
    assert CliRunner().invoke(command_that(None), ["--help"]).exit_code == 0


def test_a_group_keeps_the_conventions_for_its_subcommands() -> None:
    @click.group(cls=Group)
    def group() -> None:
        pass

    @group.command()
    def check() -> None:
        raise CheckFailed("no")

    assert CliRunner().invoke(group, ["check"]).exit_code == 2
    assert CliRunner().invoke(group, ["nonsense"]).exit_code == 1
    bare = CliRunner().invoke(group, [])
    assert (bare.exit_code, bare.stderr) == (0, "")
    assert bare.stdout.startswith("Usage: group")


def test_json_is_one_object_on_standard_output_and_tables_are_not() -> None:
    @click.command(cls=Command)
    def command() -> None:
        report_console(json_output=True).print("a table")
        print_json({"text": "é", "k": 4})

    result = CliRunner().invoke(command, [])
    assert json.loads(result.stdout) == {"text": "é", "k": 4}
    assert "a table" in result.stderr
