"""How a guarded process ended: by what it was asked, or from outside, which says nothing of the request."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mxspec.runtime.guarded.fork_server import ForkServer
from mxspec.runtime.guarded.process import GuardedProcess, ProcessEndedError, RefusedError, TooSlowError
from mxspec.runtime.guarded.process_quota import ProcessQuota

KEPT = """
import os, sys
from mxspec.runtime.guarded.child import answer_requests

def answer(number):
    os.kill(os.getpid(), number)

answer_requests(sys.stdin.buffer, sys.stdout.buffer, answer, 1 << 30)
"""
FORKED = """
import os
from mxspec.runtime.guarded.forking import Bounds, fork_for_each

def answer(number):
    os.kill(os.getpid(), number)

fork_for_each(lambda: answer, Bounds(1 << 30, 1 << 20))
"""
Ask = Callable[[int], str]


@pytest.fixture(params=["kept", "forked"])
def ask(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Asks a process that ends itself by a signal."""
    (tmp_path / "own_child.py").write_text(KEPT if request.param == "kept" else FORKED)
    monkeypatch.syspath_prepend(tmp_path)
    if request.param == "kept":
        process = GuardedProcess("own_child")
        yield lambda number: process.ask(9.0, int(number))
        process.close()
    else:
        forks, quota = ForkServer("own_child"), ProcessQuota(1)
        yield lambda number: forks.ask(9.0, int(number), give_up=lambda: False, quota=quota)
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

    monkeypatch.setattr("mxspec.runtime.guarded.process.subprocess.Popen", refuse)
    with pytest.raises(ProcessEndedError, match=r"^the process that works on it cannot be started$"):
        ask(signal.SIGSEGV)


def test_a_process_has_so_much_time_to_prepare_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = FORKED.replace("lambda: answer", "lambda: [None for _ in iter(int, 1)]")
    (tmp_path / "slow_child.py").write_text(endless)
    monkeypatch.syspath_prepend(tmp_path)
    forks = ForkServer("slow_child", start_seconds=0.1)
    with pytest.raises(TooSlowError, match=r"^more than 0\.1 seconds$"):
        forks.ask(9.0, 0, give_up=lambda: False, quota=ProcessQuota(1))
    forks.close()
