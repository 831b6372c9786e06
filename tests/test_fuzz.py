"""A few hundred damaged files for each reader; `python tests/fuzz.py` throws 100,000."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import TARGETS, Target, fuzz, judge


@pytest.mark.parametrize("reader", TARGETS)
def test_every_reader_takes_a_file_or_says_one_line(reader: str, tmp_path: Path) -> None:
    target = TARGETS[reader](tmp_path)
    for good in target.good:
        target.path.write_bytes(target.whole(good))
        assert judge(target) == ("taken", "")  # or the others would be refused for nothing
    (tmp_path / "changed").mkdir()
    counts = fuzz(reader, 400, 0, tmp_path / "changed")
    assert counts.keys() <= {"taken", "refused"}, counts


def test_errors_are_named(tmp_path: Path) -> None:
    def divide() -> object:
        return 1 // 0

    assert judge(Target(tmp_path, divide, ())) == ("ZeroDivisionError", "integer division or modulo by zero")
