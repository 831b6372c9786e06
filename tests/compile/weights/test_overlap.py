"""Reading ahead and writing behind change nothing but the time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mxspec.compile.weights.overlap import WriteBehind, read_ahead


def test_items_come_in_order() -> None:
    assert list(read_ahead(iter(range(1, 9)))) == list(range(1, 9))


def test_an_error_while_reading_is_raised() -> None:
    def items() -> Iterator[str]:
        yield "first"
        raise OSError("disk")

    found = read_ahead(items())
    assert next(found) == "first"
    with pytest.raises(OSError, match="disk"):
        next(found)


def test_calls_run_in_order_and_all_of_them() -> None:
    done: list[int] = []
    with WriteBehind() as behind:
        for i in range(20):
            behind(done.append, i)
    assert done == list(range(20))


def fail(message: str) -> None:
    raise OSError(message)


@pytest.mark.parametrize("calls_after", [0, 1, 5])
def test_an_error_while_writing_is_raised_at_the_end_at_the_latest(calls_after: int) -> None:
    def work() -> None:
        with WriteBehind() as behind:
            behind(fail, "disk full")
            for _ in range(calls_after):
                behind(str)

    with pytest.raises(OSError, match="disk full"):
        work()


def test_an_error_of_the_caller_is_not_hidden_by_one_of_the_writer() -> None:
    def work() -> None:
        with WriteBehind() as behind:
            behind(fail, "disk full")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()


def test_nothing_is_written_after_a_failed_write() -> None:
    done: list[int] = []
    begun = threading.Event()

    def late() -> None:
        begun.wait()
        raise OSError("disk full")

    def work() -> None:
        with WriteBehind() as behind:
            behind(late)
            behind(done.append, 1)
            begun.set()

    with pytest.raises(OSError, match="disk full"):
        work()
    assert done == []
