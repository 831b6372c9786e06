"""Strings of a stranger's manifest are shown as they are: no markup, no emoji, no escape sequence is obeyed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.table import Table

from mxspec.compile.commands.report import print_report
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.runtime.cli.command import LONGEST_ERROR, Command
from mxspec.runtime.cli.plain_console import PlainConsole, visible
from tests.formats.conftest import write_bundle

HOSTILE = "[bold red]x[/] [link=http://evil]y[/link] :smile: [/] \x1b[2J\x9b31m \u202egnp.exe [@click=app.bell]z"
SHOWN = "[bold red]x[/] [link=http://evil]y[/link] :smile: [/] \\x1b[2J\\x9b31m \\u202egnp.exe [@click=app.bell]z"


def console(**options: object) -> tuple[PlainConsole, io.StringIO]:
    file = io.StringIO()
    return PlainConsole(file=file, width=400, force_terminal=True, color_system=None, legacy_windows=False), file


def test_lines_titles_and_cells_are_plain() -> None:
    for shape in ("line", "table"):
        plain, file = console()
        if shape == "line":
            plain.print(HOSTILE)
        else:
            table = Table(HOSTILE, title=HOSTILE, caption=HOSTILE)
            table.add_row(HOSTILE)
            plain.print(table)
        shown = (
            file.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[3m", "").replace("\x1b[2m", "")
        )
        assert shown.count(SHOWN) == (1 if shape == "line" else 4)
        assert "\x1b" not in shown


def test_a_number_of_a_table_is_never_cut() -> None:
    for width in (80, 30, 10):
        table = Table(box=None)
        for name in ("a name that is folded where the table is wide", "tokens", "bytes"):
            table.add_column(name, justify="left" if " " in name else "right")
        table.add_row("some words", "24093", "1,234,567")
        file = io.StringIO()
        PlainConsole(file=file, width=width).print(table)
        assert {"24093", "1,234,567"} <= set(file.getvalue().split())


def test_a_report_shows_a_strangers_names_as_they_are(tmp_path: Path) -> None:
    path = write_bundle(tmp_path / "x.bundle")
    manifest = json.loads((path / "manifest.json").read_text())
    for model in manifest["models"].values():
        model["architecture"] = HOSTILE
        model["ignored"] = [HOSTILE]
        model["rounding"] = {"method": "gptq", "nearest": {HOSTILE: HOSTILE}}
    manifest["versions"] = {HOSTILE: HOSTILE}
    (path / "manifest.json").write_text(json.dumps(manifest))
    plain, file = console()
    print_report(path, Bundle.open(path).manifest, plain)
    assert file.getvalue().count("[bold red]x[/]") == 2 * (1 + 1 + 2) + 2


@pytest.mark.parametrize(("text", "shown"), [(HOSTILE, SHOWN), ("a\tb\nc é 漢", "a\tb\nc é 漢"), ("\r\0", "\\r\\x00")])
def test_control_characters_are_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_an_error_is_one_plain_line() -> None:
    @click.command(cls=Command)
    def fail() -> None:
        raise MxspecError(f"{HOSTILE}\n{'x' * 10_000}")

    said = CliRunner().invoke(fail).stderr
    assert said.startswith(f"error: {SHOWN} xxx")
    assert said.count("\n") == 1
    assert len(said) < LONGEST_ERROR + 20
