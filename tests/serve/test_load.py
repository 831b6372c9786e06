"""`serve-load` of bench/, small: clients that leave, make mistakes and read slowly, and not one answer is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_under_load_nothing_is_wrong_stuck_or_lost(bundle: Path) -> None:
    small = [
        "--requests",
        "80",
        "--clients",
        "8",
        "--slots",
        "3",
        "--queue",
        "2",
        "--distinct",
        "30",
        "--longest",
        "90",
    ]
    command = [sys.executable, "-m", "bench", "serve-load", str(bundle), *small, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT)
    assert done.returncode == 0, done.stderr or done.stdout
    result = json.loads(done.stdout)
    assert result["requests"] == 80
    assert result["whole"] + result["cancelled"] + result["malformed"] == 80
    assert (result["wrong"], result["stuck"], result["left_running"]) == (0, 0, 0)
    assert result["compared_greedy"] > 20
    assert result["compared_sampled"] > 5
    assert result["asked_again"] > 0  # the queue was full, and said so
    assert result["exit_code"] == 0
