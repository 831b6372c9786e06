"""The answers of a batch job: a line each, in the order of the input, written as they are made.

    {"line": 3, "hash": "5f0c…", "key": "c", "text": …}      line 3 of the input, and what made the answer

A job that was killed goes on after its last whole line. `hash` is of the input line, the bundle and the command's
settings, so that no answer is taken for one of another job.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mxspec.formats.errors import MxspecError

_BEGINNING = b'{"line": '


@dataclass(frozen=True, slots=True)
class Answered:
    """What an earlier run wrote about a line."""

    number: int
    hash: str
    bad: bool
    key: Any = None

    @classmethod
    def parse(cls, data: bytes | str) -> Self:
        """Parse a line of answers; raises ValueError for a line that no batch job wrote."""
        try:
            report = json.loads(data)
            return cls(int(report["line"]), str(report["hash"]), "error" in report, report["key"])
        except (KeyError, TypeError) as error:
            raise ValueError(error) from None


def other_job(output: str, answered: str, unit: str, place: str) -> MxspecError:
    """The error for an `output` that has an answer of another job."""
    return MxspecError(
        f"{output}: its answer to {answered} is of another {unit}, bundle or settings; "
        f"give another {place}, or the settings that the job was started with"
    )


class BatchOutput:
    """The file of the answers; a context manager. Raises MxspecError where it cannot be opened, or is being written."""

    def __init__(self, path: Path, argument: str = "--out") -> None:
        self._name = f"{argument} {path}"  # in errors
        try:
            self._file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+")  # unbuffered
        except OSError as error:
            raise self._error(error) from None
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            self._file.close()
            raise MxspecError(f"{self._name}: is not a regular file, and must be one so that the job can be resumed")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise MxspecError(f"{self._name}: another job is writing it") from None
        except OSError:  # a file system without locks
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def same_file(self, other: Path) -> bool:
        """Whether `other` is the same file."""
        return other.exists() and os.path.samestat(other.stat(), os.fstat(self._file.fileno()))

    def answered(self) -> Iterator[Answered]:
        """The answers in the file. An incomplete last line is removed, once all lines before it have been read."""
        end = 0
        with os.fdopen(os.dup(self._file.fileno()), "rb") as lines:
            for number, data in enumerate(lines, 1):
                if data.endswith(b"\n"):
                    end += len(data)
                    try:
                        answered = Answered.parse(data)
                    except ValueError:
                        raise self._foreign(number) from None
                    yield answered
                elif not (data.startswith(_BEGINNING) or _BEGINNING.startswith(data)):
                    raise self._foreign(number)
        self._file.truncate(end)
        self._file.seek(end)

    def write(self, report: Mapping[str, Any]) -> None:
        """Append a line; it is in the file even if the process is killed right after."""
        data = json.dumps(report, ensure_ascii=False, allow_nan=False).encode(errors="replace") + b"\n"
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise self._error(error) from None

    def _foreign(self, number: int) -> MxspecError:
        return MxspecError(f"{self._name}: line {number} was not written by a batch job; give another file")

    def _error(self, error: OSError) -> MxspecError:
        return MxspecError(f"{self._name}: {error.strerror}")
