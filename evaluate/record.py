"""Records: one JSON file with the command, the machine and every trial; written, and read back as results."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mxspec.evaluate.result import Result
from mxspec.formats.errors import MxspecError
from mxspec.runtime import ops
from mxspec.runtime.ops import processor_name

PACKAGES = ("mxspec", "onnxruntime", "numpy", "tokenizers", "torch", "transformers", "onnx", "onnxscript")


def machine() -> dict[str, Any]:
    """The processor's name, the instruction set, the number of usable cores, and the operating system."""
    return {
        "cpu": processor_name(),
        "instruction_set": ops.instruction_set(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.system(),
        "arch": platform.machine(),
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of this file's source tree, with `-dirty` if the tree was changed; None for a wheel."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def command_line() -> str:
    """The command as typed, without the program's folder."""
    program = Path(sys.argv[0])
    name = f"python -m {program.parent.name}" if program.name == "__main__.py" else program.name
    return " ".join([name, *sys.argv[1:]])


def write_record(path: Path, kind: str, result: Mapping[str, Any]) -> None:
    """Write the kind of a result, the command, the machine, versions, and the result with every trial."""
    head = {"kind": kind, "command": command_line(), "commit": commit(), "machine": machine(), "versions": versions()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**head, "result": dict(result)}, indent=1) + "\n")


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
