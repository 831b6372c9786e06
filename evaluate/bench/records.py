"""Records of benchmarks, read back as results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mxspec.evaluate.result import Result
from mxspec.formats.errors import MxspecError


@dataclass(frozen=True, slots=True)
class Record:
    """A result, with the command, machine and versions that it was measured with."""

    name: str  # of the file, without its folder
    command: str
    commit: str | None
    machine: dict[str, Any]
    versions: dict[str, str]
    result: Result

    @property
    def where(self) -> str:
        """Machine and commit; the oldest records lack the instruction set."""
        isa = self.machine.get("instruction_set")
        cpu = self.machine["cpu"] + (f" ({isa})" if isa else "")
        return f"{cpu}, {self.machine['cores']} cores, commit {self.commit}"


def read_record(path: Path, kinds: Sequence[type[Result]], problem: str = "unknown kind of result") -> Record:
    """Read a record of one of these kinds. Raises MxspecError for another file and, with `problem`, another kind."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise MxspecError(f"{path}: cannot be read as a record: {error}") from None
    if not isinstance(found, dict) or not {"kind", "command", "commit", "machine", "versions", "result"} <= set(found):
        raise MxspecError(f"{path}: is not a record; expected a file that --record wrote")
    result = result_of(found["kind"], found["result"], kinds)
    if result is None:
        raise MxspecError(f"{path}: {problem}, or written by another mxspec; measure again with: {found['command']}")
    return Record(path.name, found["command"], found["commit"], found["machine"], found["versions"], result)


def result_of(kind: str, result: Any, kinds: Sequence[type[Result]]) -> Result | None:
    """The result as the type of its kind; None if no type is of this kind, or accepts it."""
    for each in kinds:
        if each.kind == kind:
            with suppress(ValidationError):
                return each.model_validate(result)
    return None
