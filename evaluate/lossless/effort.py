"""The amount of work of each effort: as many tokens as the models write in the effort's time."""

from __future__ import annotations

import time
from dataclasses import dataclass

from mxspec.runtime.engine import Engine
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session

WARM_UP, TIMED = 2, 5  # calls
ROWS = 8  # of the larger of the two timed calls


@dataclass(frozen=True, slots=True)
class Effort:
    """Seconds of the models' work, and limits on what is compared in this time."""

    model_seconds: float
    equal_tokens: int  # largest length of a text that is compared
    sampled_tokens: int  # largest number for each way to sample; the first way has three times as many


EFFORTS = {
    "quick": Effort(25, equal_tokens=24, sampled_tokens=200),
    "normal": Effort(100, equal_tokens=48, sampled_tokens=600),
    "thorough": Effort(1_200, equal_tokens=96, sampled_tokens=4_000),
}


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of the target's calls on this machine."""

    one_row: float
    some_rows: float

    def seconds(self, rows: int) -> float:
        """Estimated seconds of a call with `rows` rows."""
        row = max(self.some_rows - self.one_row, 0.0) / (ROWS - 1)
        return self.one_row + row * (rows - 1)


def measure_speed(engine: Engine) -> Speed:
    """Time calls of one row and of several."""
    session = Session.of(engine.bundle, "target", 1)
    return Speed(_median_seconds(session, 1), _median_seconds(session, min(ROWS, session.capacity)))


def _median_seconds(session: Session, rows: int) -> float:
    seconds = []
    if session.encoder is not None:
        session.encode([(0, [0] * min(ROWS, session.source_capacity))])
    for _ in range(WARM_UP + TIMED):
        began = time.perf_counter()
        session.run([Part(0, 0, [0] * rows, rows)])
        seconds.append(time.perf_counter() - began)
    return sorted(seconds[WARM_UP:])[TIMED // 2]
