"""The result of a measurement or a check: a frozen value, stored as JSON, whose sheets are its tables.

A sheet is a table before it is rendered: the terminal and the documents show the same sheets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict

from mxspec.formats.errors import MxspecError


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and half of the interquartile range of the trials."""

    median: float
    half: float

    @classmethod
    def of(cls, median: float, quartiles: tuple[float, float]) -> Spread:
        return cls(median, (quartiles[1] - quartiles[0]) / 2)


Cell = str | float | Spread | None
"""None is a cell without a value."""

Row = TypeVar("Row")
SPREAD = "± is half of what the middle half of the trials spans."


@dataclass(frozen=True, slots=True)
class Column:
    """A header, the format() of the numbers below it, and their factor, such as 1e3 for ms."""

    header: str
    form: str = ""
    unit: float = 1

    def text(self, cell: Cell) -> str:
        """The text of a cell in this column."""
        if isinstance(cell, Spread):
            return f"{self.text(cell.median)} ± {self.text(cell.half)}"
        if cell is None or isinstance(cell, str):
            return cell or ""
        if not math.isfinite(cell):
            return "not finite"
        return f"{cell * self.unit if self.unit != 1 else cell:{self.form}}"


@dataclass(frozen=True, slots=True)
class Sheet:
    """Rows of cells; the first `keys` columns name what a row is about."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    keys: int = 1

    @classmethod
    def of_figures(cls, title: str, figures: Sequence[tuple[str, str | None]], notes: Sequence[str] = ()) -> Sheet:
        """A sheet of single figures with their names; figures that are None are left out."""
        rows = tuple((name, value) for name, value in figures if value is not None)
        return cls(title, (Column("measure"), Column("value")), rows, tuple(notes))

    @classmethod
    def of_rows(
        cls,
        title: str,
        rows: Iterable[Row],
        columns: Sequence[tuple[Column, Callable[[Row], Cell]]],
        notes: Sequence[str] = (),
        keys: int = 1,
    ) -> Sheet:
        """A sheet with a line for each of `rows`; each column stands beside the function that gives its cells."""
        cells = tuple(tuple(cell(row) for _, cell in columns) for row in rows)
        return cls(title, tuple(column for column, _ in columns), cells, tuple(notes), keys)

    @property
    def headers(self) -> list[str]:
        """The headers of columns that have a value in at least one row."""
        return [self.columns[number].header for number in self._filled]

    @property
    def lines(self) -> list[list[str]]:
        """The text of each row's cells, in the order of `headers`."""
        return [[self.columns[number].text(row[number]) for number in self._filled] for row in self.rows]

    @property
    def _filled(self) -> list[int]:
        return [
            number
            for number in range(len(self.columns))
            if number < self.keys or any(row[number] not in (None, "") for row in self.rows)
        ]


def joined(sheets: Sequence[Sheet]) -> Sheet:
    """Join sheets of the same columns, one below another. Raises MxspecError if their columns differ."""
    first = sheets[0]
    for sheet in sheets:
        if sheet.columns != first.columns:
            raise MxspecError(f"{sheet.title}: its columns are not those of {first.title}")
    notes = dict.fromkeys(note for sheet in sheets for note in sheet.notes)
    return replace(first, rows=tuple(row for sheet in sheets for row in sheet.rows), notes=tuple(notes))


class Value(BaseModel):
    """A part of a result."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Result(Value):
    """The base of every result. --json prints it and a record holds it as JSON; values that are not finite are null.

    A record says the result's `kind`, by which it is read again. Of the figures with trials, `faster_if_more` and
    `faster_if_less` name those by which two records are compared.
    """

    kind: ClassVar[str]
    faster_if_more: ClassVar[tuple[str, ...]] = ()
    faster_if_less: ClassVar[tuple[str, ...]] = ()

    def sheets(self) -> Sequence[Sheet]:
        """The tables of the result."""
        raise NotImplementedError
