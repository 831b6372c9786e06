"""One sheet is a terminal's table and the documents': no word of it is cut, and no column without values is shown."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from mxspec.evaluate.render import markdown, renderables
from mxspec.evaluate.result import Column, Sheet, Spread, joined
from mxspec.formats.errors import MxspecError

COLUMNS = (
    Column("way"),
    Column("ms", ".1f", 1e3),
    Column("not measured"),
    *(Column(f"figure {i} a call") for i in range(9)),
)
ROWS = (
    ("plain decoding [bold]", Spread(0.012, 0.001), None, *(f"{i:,} GB/s" for i in range(1000, 1009))),
    ("speculating", math.inf, "", *("" for _ in range(9))),
)
SHEET = Sheet("a title", COLUMNS, ROWS, ("a note of several words, which is longer than most of them and is broken",))


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_terminal_of_any_width_cuts_no_word(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, markup=False)
    for part in renderables(SHEET, width):
        console.print(part)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, said.splitlines())) <= width
    for word in (*SHEET.headers[1:3], "1,008 GB/s", "12.0 ± 1.0", "speculating", "[bold]", "a title", "not finite"):
        assert all(part in said for part in word.split()), word
    assert "1,008 GB/s" in said
    assert "not measured" not in said


def test_markdown_has_title_table_and_notes() -> None:
    made = markdown(Sheet("t", COLUMNS[:3], tuple(row[:3] for row in ROWS), ("n",)))
    rows = "| way | ms |\n| --- | ---: |\n| plain decoding [bold] | 12.0 ± 1.0 |\n| speculating | not finite |"
    assert made == f"t\n\n{rows}\n\nn"


def test_sheets_of_other_columns_are_not_joined() -> None:
    assert len(joined([SHEET, SHEET]).rows) == 4
    assert joined([SHEET, SHEET]).notes == SHEET.notes
    with pytest.raises(MxspecError, match="its columns are not those"):
        joined([SHEET, Sheet("other", COLUMNS[:1], ())])
