"""What the machine gives: the speed of plain reads, and a process's anonymous memory.

The speed of a loop that does nothing but read memory is the ceiling for every other reader.

For a fair ceiling, the loop reads the same memory on as many threads at the same moment (a shared machine's speed
changes by half within seconds), reads about as many bytes between two looks at the clock (a median of short trials
leaves interruptions out, one long trial includes them), and is the fastest of several loops on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxspec.evaluate.bench.harness import Quartiles, median, quartiles
from mxspec.evaluate.result import Value
from mxspec.runtime.ops.timing import read_loops, time_read

PIECE_BYTES = 8 << 20  # about a matrix of a model of a billion weights
PASSES = 2  # of every loop over all pieces, before the fastest loop is chosen


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of some work, and of reading as many bytes right after it."""

    seconds: float
    read_seconds: float

    @property
    def share_of_read(self) -> float:
        return self.read_seconds / self.seconds


class ReadCeiling:
    """The fastest plain loop over uint8[pieces, bytes]; it reads the pieces one after another."""

    def __init__(self, pieces: NDArray[np.uint8]) -> None:
        self.pieces = pieces
        loops = read_loops()
        trials: dict[str, list[float]] = {loop: [] for loop in loops}
        for turn in range(PASSES * len(loops)):
            for piece in range(len(pieces)):  # the loops alternate, so that a change of speed meets all of them
                loop = loops[(piece + turn) % len(loops)]
                trials[loop].append(self._seconds(piece, loop))
        self.loop = min(loops, key=lambda loop: median(trials[loop]))

    def seconds_after(self, piece: int) -> float:
        """Seconds of reading a piece far from `piece`, which no cache still holds when the pieces are used in order."""
        return self._seconds((piece + len(self.pieces) // 2) % len(self.pieces), self.loop)

    def bytes_per_second(self) -> float:
        """Speed of reading all pieces once."""
        return self.pieces.nbytes / sum(self._seconds(piece, self.loop) for piece in range(len(self.pieces)))

    def _seconds(self, piece: int, loop: str) -> float:
        return float(time_read(self.pieces[piece], loop)[0][0])


def pieces_of_file(path: Path) -> NDArray[np.uint8]:
    """uint8[pieces, bytes] of a file, mapped as a session maps its weights: in the same pages of the same memory."""
    data = np.memmap(path, np.uint8, "r")
    count = max(data.size // PIECE_BYTES, 1)
    return data[: data.size // count * count].reshape(count, -1)


class PairedTimes(Value):
    """Medians and quartiles over the pairs of all repetitions, and the medians of each repetition."""

    seconds: float
    seconds_quartiles: Quartiles
    share_of_read: float
    share_quartiles: Quartiles
    trials_seconds: tuple[float, ...]
    trials_share_of_read: tuple[float, ...]


def describe_pairs(repetitions: Sequence[Sequence[Pair]]) -> PairedTimes:
    """Medians and quartiles over the pairs of all repetitions, and the medians of each."""
    seconds = [[pair.seconds for pair in pairs] for pairs in repetitions]
    shares = [[pair.share_of_read for pair in pairs] for pairs in repetitions]
    return PairedTimes(
        seconds=median(np.concatenate(seconds)),
        seconds_quartiles=quartiles(np.concatenate(seconds)),
        share_of_read=median(np.concatenate(shares)),
        share_quartiles=quartiles(np.concatenate(shares)),
        trials_seconds=tuple(median(trial) for trial in seconds),
        trials_share_of_read=tuple(median(trial) for trial in shares),
    )


def anonymous_bytes(process: int | None = None) -> int:
    """Bytes of anonymous memory that a process, by default this one, has resident now (RssAnon of proc(5)).

    0 if the system does not tell, or the process has ended.
    """
    try:
        lines = Path("/proc", str(process or "self"), "status").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
