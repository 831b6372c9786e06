"""How a guarded process ended: by what it was asked, or from outside, which says nothing of the request."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mxspec.runtime.guarded.fork_server import ForkServer, ProcessEndedError, RefusedError, TooSlowError

CHILD = """
import os
from mxspec.runtime.guarded.forking import Bounds, fork_for_each

def answer(number):
    os.kill(os.getpid(), number)

fork_for_each(lambda: answer, Bounds(1 << 30, 1 << 20))
"""
Ask = Callable[[int], str]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Asks a process that ends itself by a signal."""
    (tmp_path / "own_child.py").write_text(CHILD)
    monkeypatch.syspath_prepend(tmp_path)
    forks = ForkServer("own_child")
    yield lambda number: forks.ask(9.0, int(number))
    forks.close()


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGPROF])
def test_what_a_request_brings_upon_its_process_is_the_requests_fault(ask: Ask, number: int) -> None:
    with pytest.raises(RefusedError) as caught:
        ask(number)
    assert not isinstance(caught.value, ProcessEndedError)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_ended_from_outside_says_nothing_of_the_request(ask: Ask, number: int) -> None:
    with pytest.raises(ProcessEndedError, match=r"^the process that works on it has ended"):
        ask(number)


def test_a_process_that_cannot_be_started_says_nothing_of_the_request(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise BlockingIOError

    monkeypatch.setattr("mxspec.runtime.guarded.fork_server.subprocess.Popen", refuse)
    with pytest.raises(ProcessEndedError, match=r"^the process that works on it cannot be started$"):
        ask(signal.SIGSEGV)


def test_a_process_has_so_much_time_to_prepare_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = CHILD.replace("lambda: answer", "lambda: [None for _ in iter(int, 1)]")
    (tmp_path / "slow_child.py").write_text(endless)
    monkeypatch.syspath_prepend(tmp_path)
    forks = ForkServer("slow_child", start_seconds=0.1)
    with pytest.raises(TooSlowError, match=r"^more than 0\.1 seconds$"):
        forks.ask(9.0, 0)
    forks.close()
