"""The answers of a job: a folder of parts, each complete from the moment it exists.

    part-00000.parquet   10,000 answers
    part-00001.parquet
    _unfinished.jsonl    those since then, a line each as they come; a part once it is full, or the job is over

A job that was killed goes on after the last whole line of the unfinished part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mxspec.formats.errors import MxspecError
from mxspec.runtime.commands.batch_output import Answered, BatchOutput
from mxspec.serve.jobs.rows import Kind

ANSWERS = 10_000  # number of answers of a part
UNFINISHED = "_unfinished.jsonl"  # readers of folders skip names that begin with _


class Parts:
    """The folder; a context manager. Raises MxspecError where it cannot be used, or another job writes there."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self._folder = folder
        self._kind: Kind = kind
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MxspecError(f"OUTPUT {folder}: expected a folder: {error.strerror}") from None
        self._finished = sorted(folder.glob("part-*"))
        for part in self._finished:
            if part.suffix != f".{kind}" or not part.stem[5:].isdecimal():
                raise MxspecError(f"OUTPUT {folder}: {part.name} was not written by a batch job; give another folder")
        self._output = BatchOutput(folder / UNFINISHED, "OUTPUT")
        self._written = 0  # number of answers in the unfinished part

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._output.__exit__(kind, error, trace)
        if not self._written:
            (self._folder / UNFINISHED).unlink(missing_ok=True)

    def answered(self) -> Iterator[Answered]:
        """The answers of earlier runs; read them to the end before anything is written."""
        lines: set[int] = set()
        for part in self._finished:
            for answered in _read_part(part):
                lines.add(answered.number)
                yield answered
        unfinished = list(self._output.answered())
        if unfinished and unfinished[0].number in lines:  # killed after the part was made, before this file was removed
            self._begin()
            return
        self._written = len(unfinished)
        yield from unfinished

    def write(self, report: Mapping[str, Any]) -> None:
        """Append an answer; it is in the folder even if the process is killed right after."""
        self._output.write(report)
        self._written += 1
        if self._written == ANSWERS:
            self.finish()

    def finish(self) -> None:
        """Make a part of the unfinished answers."""
        unfinished = self._folder / UNFINISHED
        if self._written:
            number = int(self._finished[-1].stem[5:]) + 1 if self._finished else 0
            part = self._folder / f"part-{number:05}.{self._kind}"
            if self._kind == "parquet":
                _write_parquet(unfinished, part)
            else:
                os.replace(unfinished, part)
            self._finished.append(part)
        self._begin()

    def _begin(self) -> None:
        self._output.__exit__(None, None, None)
        (self._folder / UNFINISHED).unlink(missing_ok=True)
        self._output = BatchOutput(self._folder / UNFINISHED, "OUTPUT")
        self._written = 0


def _read_part(path: Path) -> Iterator[Answered]:
    try:
        if path.suffix == ".jsonl":
            with path.open("rb") as lines:
                yield from map(Answered.parse, lines)
            return
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["report"]):
                yield from map(Answered.parse, batch.column("report").to_pylist())
    except (OSError, ValueError) as error:  # pyarrow's errors are of these
        raise MxspecError(f"OUTPUT {path}: was not written by a batch job: {error}") from None


def _write_parquet(lines: Path, part: Path) -> None:
    """Write the answers with their most used fields as columns; the column `report` is the line of JSON."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("line", pa.int64()),
            ("key", pa.string()),
            ("error", pa.string()),
            ("text", pa.string()),
            ("token_ids", pa.list_(pa.int32())),
            ("finish_reason", pa.string()),
            ("report", pa.string()),
        ]
    )
    rows = []
    with lines.open(encoding="utf-8", newline="\n") as file:
        for text in file:
            row = json.loads(text)
            if row["key"] is not None and not isinstance(row["key"], str):
                row["key"] = json.dumps(row["key"])
            rows.append({name: row.get(name) for name in schema.names} | {"report": text.rstrip("\n")})
    half = part.with_name("_half.parquet")
    pq.write_table(pa.Table.from_pylist(rows, schema), half)
    os.replace(half, part)
