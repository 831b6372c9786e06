"""less-memory leaves others the memory that it says."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.calls.less_memory import PIECE, adjust, memory_bytes
from bench.results import LessMemoryResult, MemoryTrial


@pytest.mark.parametrize("others", [0, 3, 9])
def test_memory_is_held_and_given_back_as_others_need_it(others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a system of twelve pieces, two and a half are to be left."""
    monkeypatch.setattr(
        "bench.calls.less_memory.np.ones", lambda size, _: np.empty(0, np.uint8) if size == PIECE else None
    )
    pieces: list[NDArray[np.uint8]] = []

    def spare(others: int) -> int:
        return (12 - others - len(pieces)) * PIECE - 5 * PIECE // 2

    for taken in (0, others, 0):
        while adjust(pieces, spare(taken)):
            pass
        assert 0 <= spare(taken) <= PIECE
    while adjust(pieces, spare(12)):
        pass
    assert not pieces


def test_available_memory_is_less_than_all() -> None:
    assert 0 < memory_bytes("MemAvailable") < memory_bytes("MemTotal")


def test_a_row_says_the_medians_of_its_trials() -> None:
    def trials(*seconds: float, disk: float) -> tuple[MemoryTrial, ...]:
        return tuple(MemoryTrial(available_bytes=50, seconds_a_token=s, disk_bytes_a_token=disk) for s in seconds)

    result = LessMemoryResult(
        bundle="b",
        threads=2,
        tokens=4,
        weights_file_bytes=100,
        weight_bytes=20,
        enough=trials(0.5, 0.25, 0.1, disk=0.0),
        less=trials(2.0, 1.0, 4.0, disk=3e6),
    )
    (sheet,) = result.sheets()
    assert sheet.rows == (("50%", 4.0, 0.0), ("50%", 0.5, 3e6))
