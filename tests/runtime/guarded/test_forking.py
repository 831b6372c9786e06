"""The process that forks others: what it hears of at once, in an order in which nothing is gone before its turn."""

from __future__ import annotations

import os
import select
from types import SimpleNamespace
from typing import Any

import pytest

from mxspec.runtime.guarded.forking import _Forking


def test_a_child_that_ends_as_its_owner_hangs_up_is_reaped_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reaping closes the connection whose hang-up came with it: the whole process ended over that, and its children."""
    wakes, wake = os.pipe()
    os.write(wake, b"a child has ended")
    control, child = 900, 901
    at_once = [(control, select.POLLIN), (wakes, select.POLLIN), (child, select.POLLHUP)]
    forking: Any = object.__new__(_Forking)
    forking._wakes, forking._children = wakes, {}
    forking._control = SimpleNamespace(fileno=lambda: control)
    forking._poll = SimpleNamespace(poll=lambda: at_once)
    happened: list[str] = []

    def happens(what: str) -> bool:
        happened.append(what)
        return what not in happened[:-1]

    monkeypatch.setattr(_Forking, "_take", lambda _: happens("take"))
    monkeypatch.setattr(_Forking, "_kill", lambda *_: happens("kill"))
    monkeypatch.setattr(_Forking, "_reap", lambda _: happens("reap"))
    forking.run()  # until it takes no more
    assert happened[:3] == ["take", "kill", "reap"]
    for descriptor in (wakes, wake):
        os.close(descriptor)
