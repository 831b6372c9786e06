"""A text to take prompts from."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.py"
    path.write_text("def read_lines(path):\n    with open(path) as file:\n        return file.readlines()\n" * 40)
    return str(path)
