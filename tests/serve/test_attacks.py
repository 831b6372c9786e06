"""The attacks in bench/, small: what hurts nobody here is what the programs say of a published model's server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parents[2] / "bench"


def attack(program: str, bundle: Path, *options: object) -> Any:
    command = [sys.executable, str(BENCH / program), str(bundle), *map(str, options), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr or done.stdout
    return json.loads(done.stdout)


def test_grammars_that_hurt(bundle: Path) -> None:
    result = attack("serve_grammars.py", bundle, "--first", 22, "--alone", 0.5, "--tokens", 4)
    assert (result["process_ends"], result["wrong"], result["others"]) == (0, [], [])
    assert sum(family["refused"] + family["written"] for family in result["families"]) == 22
    assert min(family["refused"] + family["written"] for family in result["families"]) == 2  # of all kinds
    assert all(times["pieces"] and times["good_seconds"] for times in result["times"])
