"""What tests of `specbench` share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.measured import in_the_middle_half, short_calls, specbench

__all__ = ["in_the_middle_half", "short_calls", "specbench"]


@pytest.fixture
def text(tmp_path: Path) -> str:
    """A text to take prompts from."""
    path = tmp_path / "text.py"
    path.write_text("def read_lines(path):\n    with open(path) as file:\n        return file.readlines()\n" * 40)
    return str(path)
