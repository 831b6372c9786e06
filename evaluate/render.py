"""Render sheets for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from mxspec.evaluate.result import Sheet

BORDERS = 3  # a column is this much wider than its text: a space on each side, and a line


def markdown(sheet: Sheet) -> str:
    """Title, table and notes, each a paragraph."""
    marks = ["---"] * sheet.keys + ["---:"] * (len(sheet.headers) - sheet.keys)
    table = "\n".join("| " + " | ".join(line) + " |" for line in (sheet.headers, marks, *sheet.lines))
    return "\n\n".join(part for part in (sheet.title, table, *sheet.notes) if part)


def renderables(sheet: Sheet, width: int) -> Iterator[RenderableType]:
    """Title, tables and notes for a terminal of `width` columns; a sheet that is too wide becomes several tables."""
    if sheet.title:
        yield Text(sheet.title)
    for widths in _blocks(sheet, width - 1):
        table = Table()
        for number, chosen in widths.items():
            justify = "left" if number < sheet.keys else "right"
            table.add_column(Text(sheet.headers[number]), justify=justify, overflow="fold", width=chosen)  # type: ignore[arg-type]
        for line in sheet.lines:
            table.add_row(*(Text(line[number]) for number in widths))
        yield table
    yield from map(Text, sheet.notes)


def _blocks(sheet: Sheet, width: int) -> Iterator[dict[int, int]]:
    """The columns of each table, with their widths; every table has the key columns."""
    least = [_least(sheet, number) for number in range(len(sheet.headers))]
    keys = {number: min(least[number], width // sheet.keys // 2) for number in range(sheet.keys)}
    block = dict(keys)
    for number in range(sheet.keys, len(least)):
        if len(block) > len(keys) and _taken(block) + least[number] + BORDERS > width:
            yield _widened(sheet, block, width)
            block = dict(keys)
        block[number] = least[number]
    yield _widened(sheet, block, width)


def _least(sheet: Sheet, number: int) -> int:
    """The least width that breaks no word of the header or of a key, and no other cell."""
    cells = [line[number] for line in sheet.lines]
    whole = [] if number < sheet.keys else cells
    words = " ".join([sheet.headers[number], *(cells if number < sheet.keys else ())]).split()
    return max(map(len, [*words, *whole]), default=0)


def _taken(block: dict[int, int]) -> int:
    return sum(block.values()) + BORDERS * len(block)


def _widened(sheet: Sheet, block: dict[int, int], width: int) -> dict[int, int]:
    """Give the remaining width to the columns whose texts would be broken, from left to right."""
    widths = dict(block)
    for number in block:
        wanted = max(len(text) for text in (sheet.headers[number], *(line[number] for line in sheet.lines)))
        widths[number] += max(min(wanted - widths[number], width - _taken(widths)), 0)
    return widths
