"""Room for a few: who came last is next, and who gives up leaves."""

from __future__ import annotations

import threading
import time

import pytest

from mxspec.runtime.guarded.room import GivenUpError, Room


def test_the_latest_is_the_next() -> None:
    room, order, threads = Room(1), [], []

    def enter(number: int) -> None:
        with room.entered(lambda: False):
            order.append(number)

    with room.entered(lambda: False):
        for number in range(4):
            threads.append(threading.Thread(target=enter, args=(number,)))
            threads[-1].start()
            while len(room._turns) <= number:
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert order == [3, 2, 1, 0]


def test_who_gives_up_takes_no_room() -> None:
    room = Room(1)
    with room.entered(lambda: False), pytest.raises(GivenUpError), room.entered(lambda: True):
        raise AssertionError("there is no room")
    with pytest.raises(ZeroDivisionError), room.entered(lambda: True):
        _ = 1 / 0
    with room.entered(lambda: True):
        assert room._free == 0
    assert room._free == 1
