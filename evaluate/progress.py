"""Where a check or benchmark says which step begins."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], object]
"""Called with the name of the step that begins."""


def silent(step: str) -> None:
    """No progress."""
