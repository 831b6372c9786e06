"""A record says what was run, on what, and with what."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mxspec.evaluate.record import write_record
from mxspec.runtime import ops


def test_a_record_holds_command_machine_versions_and_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/some/where/specbench", "ops", "--rows", "8"])
    write_record(tmp_path / "new" / "ops.json", "ops", {"trials": [1.0, 2.0]})
    found = json.loads((tmp_path / "new" / "ops.json").read_text())
    assert found["command"] == "specbench ops --rows 8"
    assert found["result"] == {"trials": [1.0, 2.0]}
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["instruction_set"] == ops.instruction_set()
    assert found["versions"]["mxspec"]
    assert found["kind"] == "ops"
    assert set(found) == {"kind", "command", "commit", "machine", "versions", "result"}
