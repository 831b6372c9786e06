"""Records of before, in today's form."""

from __future__ import annotations

from old_records import read_result

from mxspec.evaluate.result import Result, Value


class Trial(Value):
    same: bool | None
    seconds: float | None


class Found(Result):
    trials: tuple[Trial, ...]


def test_what_is_false_or_zero_is_not_what_is_unknown() -> None:
    found = read_result(Found, {"trials": [{"same": False, "seconds": 0.0}, {"same": None}]})
    assert found.trials == (Trial(same=False, seconds=0.0), Trial(same=None, seconds=None))
