"""The figures in the documents are those of the records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_tables_are_what_the_records_say() -> None:
    check = subprocess.run([sys.executable, ROOT / "bench" / "tables.py", "--check"], capture_output=True, text=True)
    assert check.returncode == 0, f"run python bench/tables.py: {check.stderr}"
