"""Benchmark records: one JSON file with the command, the machine and every trial."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mxspec.runtime import ops
from mxspec.runtime.ops.processor import processor_name

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


def make_record(kind: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a result: its kind, the command, the machine, versions, and the result with every trial."""
    head = {"kind": kind, "command": command_line(), "commit": commit(), "machine": machine(), "versions": versions()}
    return {**head, "result": dict(result)}


def write_record(path: Path, kind: str, result: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(make_record(kind, result), indent=1) + "\n")
