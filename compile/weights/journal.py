"""The journal of packing, from which a killed run resumes: a line of JSON for each finished tensor.

The first line identifies everything that the bytes depend on; a journal with another identity is ignored. A journal
counts only as far as the weights file still has its hashes.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from mxspec.formats.manifest import Sha256, TensorEntry
from mxspec.formats.safetensors_file import SafetensorsWriter
from mxspec.formats.validation import Strict


class FinishedTensor(Strict):
    """A tensor's line in the manifest, and the hash of the weights file from its start to this tensor's end."""

    sha256: Sha256
    entry: TensorEntry


class Journal:
    """The journal at `path` of work whose bytes depend on `identity`; call `keep` before `add`."""

    def __init__(self, path: Path, identity: str) -> None:
        self._path = path
        self._files = ExitStack()
        self._first = f"{identity}\n".encode()
        self._lines = _whole_lines(path) if path.is_file() else []
        self.finished = _parse(self._lines[1:]) if self._lines[:1] == [self._first] else []

    def keep(self, count: int) -> None:
        """Keep the first `count` tensors, forget the others."""
        if not count:
            self._path.write_bytes(self._first)
        os.truncate(self._path, sum(map(len, [self._first, *self._lines[1 : 1 + count]])))
        self._file = self._files.enter_context(self._path.open("ab", buffering=0))

    def add(self, entry: TensorEntry, writer: SafetensorsWriter) -> None:
        """Note that a tensor is finished, the last that the writer wrote."""
        line = FinishedTensor(sha256=writer.sha256, entry=entry).model_dump_json()
        self._file.write(f"{line}\n".encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()


def _whole_lines(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def _parse(lines: list[bytes]) -> list[FinishedTensor]:
    """The finished tensors in the lines, up to the first damaged line."""
    finished = []
    for line in lines:
        try:
            finished.append(FinishedTensor.model_validate_json(line))
        except ValidationError:
            break
    return finished
