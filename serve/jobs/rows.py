"""The rows of a job: lines of JSONL files, or rows of Parquet files, which say the same things."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mxspec.formats.errors import MxspecError, did_you_mean
from mxspec.runtime.commands.batch_lines import KNOWN, Line, key_of, parse_line, read_lines

Kind = Literal["jsonl", "parquet"]
KINDS: dict[str, Kind] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
READ_AT_A_TIME = 1024  # rows of a Parquet file


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a file, or of all files of a folder in the order of their names."""

    path: Path
    kind: Kind
    files: tuple[Path, ...]

    @classmethod
    def of(cls, path: Path) -> Rows:
        """The rows of a path, by its suffix; raises MxspecError for a folder without such files, or with both kinds."""
        if not path.is_dir():
            if path.suffix not in KINDS:
                raise MxspecError(f"INPUT {path}: expected .jsonl or .parquet, a file or a folder of such files")
            return cls(path, KINDS[path.suffix], (path,))
        try:
            found = sorted(file for file in path.iterdir() if file.suffix in KINDS and file.name[0] not in "._")
        except OSError as error:
            raise MxspecError(f"INPUT {path}: {error.strerror}") from None
        kinds = {KINDS[file.suffix] for file in found}
        if len(kinds) != 1:
            got = "both .jsonl and .parquet files" if kinds else "no .jsonl or .parquet file"
            raise MxspecError(f"INPUT {path}: got a folder with {got}, expected files of one kind")
        return cls(path, kinds.pop(), tuple(found))

    def __iter__(self) -> Iterator[Line]:
        """Each row as a line of JSON, numbered from 1 on over all files; raises MxspecError."""
        before = number = 0
        for file in self.files:
            for line in _parquet_lines(file) if self.kind == "parquet" else read_lines(file, "INPUT"):
                number = before + line.number
                yield Line(number, line.data)
            before = number


def name_of(line: Line) -> str:
    """The name that a row has in every run of a job."""
    try:
        key = key_of(parse_line(line))
    except MxspecError:
        key = None
    return row_name(line.number, key)


def row_name(number: int, key: Any) -> str:
    """The name of a row: its own key as JSON, or its number if it has no key."""
    return f"line {number}" if key is None else json.dumps(key, sort_keys=True)


def _parquet_lines(path: Path) -> Iterator[Line]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for name in file.schema_arrow.names:
                if name not in KNOWN:
                    raise MxspecError(f"INPUT {path}: unknown column {name!r}{did_you_mean(name, KNOWN)}")
            batches = file.iter_batches(READ_AT_A_TIME)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                said = {name: value for name, value in row.items() if value is not None}
                yield Line(number, json.dumps(said, default=_refuse).encode())
    except (OSError, TypeError, pa.ArrowException) as error:
        raise MxspecError(f"INPUT {path}: cannot be read: {error}") from None


def _refuse(value: Any) -> None:
    raise TypeError(f"got a {type(value).__name__} in a row, expected text, numbers, lists and structs of them")
