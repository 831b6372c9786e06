"""What a command writes: standard output, which can be closed, full or broken, and files that options name."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mxspec.formats.errors import MxspecError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputError(Exception):
    """Standard output cannot be written. Not an OSError, because click and rich handle OSErrors themselves."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output: {error.strerror}")
        self.broken_pipe = error.errno == errno.EPIPE


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(error) from None


@contextmanager
def checked_output() -> Iterator[None]:
    """In this block, a failed write to standard output raises OutputError, even if the process started without it.

    A standard output that was replaced before, as tests do, is not changed.
    """
    before = sys.stdout
    if before is not sys.__stdout__:
        yield
        return
    _occupy_closed()
    encoding = "utf-8" if before is None else before.encoding
    buffer = io.BufferedWriter(_Output(1, "w", closefd=False))
    output = io.TextIOWrapper(buffer, encoding=encoding, errors="replace", line_buffering=os.isatty(1))
    sys.stdout = output
    try:
        yield
        output.flush()
    except OutputError:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)  # the rest of the buffer goes there when the process ends
        raise
    finally:
        with suppress(OutputError):
            output.flush()
        sys.stdout = before


def _occupy_closed() -> None:
    """Occupy the numbers of closed standard streams, so that no file opened later gets them."""
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):  # writing to 1 fails
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)


def check_path(option: str, path: Path, *suffixes: str) -> None:
    """Raise MxspecError for a file that cannot be written, before anything else is done."""
    if path.suffix not in suffixes:
        expected = " or ".join(suffixes)
        raise MxspecError(f"{option} {path}: got a name that ends in {path.suffix!r}, expected {expected}")
    if not path.parent.is_dir():
        raise MxspecError(f"{option} {path}: the folder {path.parent} does not exist")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "it is a folder" if path.is_dir() else "Permission denied"
        raise MxspecError(f"{option} {path}: cannot be written: {reason}")


def write_file(option: str, path: Path, text: str) -> None:
    """Write a text file; an old one stays whole until the new one is complete. Raises MxspecError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8", errors="replace")
        beside.replace(path)
    except (OSError, ValueError) as error:
        beside.unlink(missing_ok=True)
        raise MxspecError(f"{option} {path}: cannot be written: {error}") from None
