"""The texts to score: a file, all files of a folder, rows of a table, or a file of a dataset on the hub."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxspec.evaluate.accuracy.hub import HUB, fetch
from mxspec.formats.errors import MxspecError
from mxspec.runtime.cli.command import read_text

FIELD = "text"
_TABLES = (".jsonl", ".parquet")
_BETWEEN_ROWS = "\n\n"


@dataclass(frozen=True, slots=True)
class Document:
    """A text that is scored by itself, without the tokens of another text before it. `name` says where it came from.

    With a `source`, the text is an answer, and the encoder reads the source.
    """

    name: str
    text: str
    source: str | None = None


def read_documents(sources: Sequence[str], field: str, *, join: bool) -> tuple[list[Document], int]:
    """Read all sources in order: the documents that are not empty, and the number of files skipped as not text.

    Each row of a table (.jsonl, .parquet) gives a document, its `field`; with `join` a whole table is one document.
    Raises MxspecError for a source that cannot be read or holds no text.
    """
    documents, skipped = [], 0
    for source in sources:
        path = fetch(source) if source.startswith(HUB) else Path(source)
        found: list[Document] = []
        for file, name in _files(path, source):
            try:
                found += _read(file, name, field, join, lone=file == path)
            except UnicodeDecodeError:
                skipped += 1
        if not found:
            raise MxspecError(f"--text {source}: holds no text, expected UTF-8 that is not empty")
        documents += found
    return documents, skipped


def read_lines(path: Path, option: str, field: str = FIELD) -> list[str]:
    """The lines of a text, or the `field` of each row of a table; empty ones are kept. Raises MxspecError."""
    if path.suffix not in _TABLES:
        return read_text(path, option).splitlines()
    try:
        return _rows(path, f"{option} {path}", field)
    except UnicodeDecodeError:
        raise MxspecError(f"{option} {path}: is not UTF-8") from None


def _files(path: Path, source: str) -> Iterator[tuple[Path, str]]:
    """The file itself, or all files below a folder, sorted, without hidden ones; each with its name."""
    if not path.is_dir():
        yield path, source
        return
    below = (file for file in path.rglob("*") if not any(part.startswith(".") for part in file.relative_to(path).parts))
    for file in sorted(file for file in below if file.is_file()):
        yield file, str(file.relative_to(path))


def _read(path: Path, name: str, field: str, join: bool, *, lone: bool) -> list[Document]:
    """Raises MxspecError; for a file of a folder that is not text, UnicodeDecodeError."""
    if path.suffix in _TABLES:
        rows = _rows(path, f"--text {name}", field)
    else:
        try:
            rows = [read_text(path, "--text") if lone else path.read_text(encoding="utf-8")]
        except OSError as error:
            raise _unreadable(f"--text {name}", error) from None
    if join and path.suffix in _TABLES:
        rows = [_BETWEEN_ROWS.join(rows)]
    numbered = path.suffix in _TABLES and not join
    return [
        Document(f"{name}:{number}" if numbered else name, row) for number, row in enumerate(rows, 1) if row.strip()
    ]


def _rows(path: Path, where: str, field: str) -> list[str]:
    """The texts of a table; `where` holds the option that named the table, and its name."""
    try:
        if path.suffix == ".parquet":
            return _read_parquet(path, where, field)
        return [_of_row(row, field, where) for row in _json_lines(path, where)]
    except OSError as error:
        raise _unreadable(where, error) from None


def _unreadable(where: str, error: OSError) -> MxspecError:
    return MxspecError(f"{where}: cannot be read: {error.strerror or error}")


def _json_lines(path: Path, where: str) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise MxspecError(f"{where}: line {number} is not JSON: {error}") from None


def _of_row(row: Any, field: str, where: str) -> str:
    value = row.get(field) if isinstance(row, dict) else row
    if not isinstance(value, str):
        held = ", ".join(row) if isinstance(row, dict) else type(row).__name__
        raise MxspecError(f"{where}: a row has no text named {field!r}, only {held}: name one with --field")
    return value


def _read_parquet(path: Path, where: str, field: str) -> list[str]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise MxspecError(
            f"{where}: reading parquet needs pyarrow: pip install pyarrow, or give text or .jsonl"
        ) from None
    try:
        table = parquet.read_table(path)
    except OSError:
        raise
    except Exception as error:  # pyarrow raises ValueErrors and errors of its own
        raise MxspecError(f"{where}: cannot be read as parquet: {' '.join(str(error).split())}") from None
    if field not in table.column_names:
        raise MxspecError(
            f"{where}: has no column {field!r}, only {', '.join(table.column_names)}: name one with --field"
        )
    return [_of_row({field: value}, field, where) for value in table.column(field).to_pylist()]
