"""The plain read: it reads all, the fastest loop counts, and a piece is not read again at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mxspec.evaluate.bench import machine as read_ceiling
from mxspec.evaluate.bench.machine import Pair, ReadCeiling, describe_pairs, pieces_of_file
from mxspec.runtime.ops.timing import read_loops, time_read


@pytest.mark.parametrize("loop", read_loops())
@pytest.mark.parametrize("size", [0, 1, 64, 4099, 65_536, 600_001, 3_000_000])
def test_every_loop_reads_every_byte(loop: str, size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    words = np.concatenate([data, np.zeros(-size % 8, np.uint8)]).view(np.uint64)
    seconds, total = time_read(data, loop, 3)
    assert total == int(words.sum(dtype=np.uint64)) * 3 % 2**64
    assert len(seconds) == 3


def test_the_fastest_loop_is_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    fastest = read_loops()[3]
    read: list[int] = []

    def seconds(piece: NDArray[np.uint8], loop: str) -> tuple[NDArray[np.float64], int]:
        read.append(int(piece[0]))
        return np.array([0.5 if loop == fastest else 1.0]), 0

    monkeypatch.setattr(read_ceiling, "time_read", seconds)
    pieces = np.repeat(np.arange(4, dtype=np.uint8)[:, None], 100, axis=1)
    ceiling = ReadCeiling(pieces)
    assert ceiling.loop == fastest
    assert ceiling.bytes_per_second() == 400 / 2
    read.clear()
    for piece in range(4):
        assert ceiling.seconds_after(piece) == 0.5
    assert read == [2, 3, 0, 1]


def test_pairs_are_described_by_quartiles_over_all_and_medians_of_each_repetition() -> None:
    found = describe_pairs([[Pair(1, 0.5), Pair(2, 1.2), Pair(3, 2.1)], [Pair(4, 3.2), Pair(5, 4.5)]])
    assert found.model_dump() == {
        "seconds": 3,
        "seconds_quartiles": (2, 4),
        "share_of_read": pytest.approx(0.7),
        "share_quartiles": pytest.approx((0.6, 0.8)),
        "trials_seconds": (2, 4.5),
        "trials_share_of_read": pytest.approx((0.6, 0.85)),
    }


def test_a_file_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").write_bytes(bytes(range(100)))
    assert pieces_of_file(tmp_path / "weights").tobytes() == bytes(range(100))
    monkeypatch.setattr(read_ceiling, "PIECE_BYTES", 30)
    pieces = pieces_of_file(tmp_path / "weights")
    assert pieces.shape == (3, 33)
    assert pieces.tobytes() == bytes(range(99))
