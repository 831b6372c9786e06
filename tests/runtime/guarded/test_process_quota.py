"""A quota of processes: who came last is next, and who gives up leaves."""

from __future__ import annotations

import threading
import time

import pytest

from mxspec.runtime.guarded.process_quota import GivenUpError, ProcessQuota


def test_the_latest_is_the_next() -> None:
    quota, order, threads = ProcessQuota(1), [], []

    def enter(number: int) -> None:
        with quota.entered(lambda: False):
            order.append(number)

    with quota.entered(lambda: False):
        for number in range(4):
            threads.append(threading.Thread(target=enter, args=(number,)))
            threads[-1].start()
            while len(quota._turns) <= number:
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert order == [3, 2, 1, 0]


def test_who_gives_up_takes_no_room() -> None:
    quota = ProcessQuota(1)
    with quota.entered(lambda: False), pytest.raises(GivenUpError), quota.entered(lambda: True):
        raise AssertionError("there is no room")
    with pytest.raises(ZeroDivisionError), quota.entered(lambda: True):
        _ = 1 / 0
    with quota.entered(lambda: True):
        assert quota._free == 0
    assert quota._free == 1
