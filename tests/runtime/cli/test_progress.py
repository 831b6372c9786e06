"""What is seen while a prompt is read."""

from __future__ import annotations

import io
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from mxspec.runtime.cli import progress
from mxspec.runtime.scheduling.scheduled_text import prompt_read


def test_a_sequence_reports_how_much_of_its_prompt_was_read(toys: Any) -> None:
    target = toys.Session(toys.random_logits(16, 1), chunk=16)
    scheduler = toys.scheduler(target)
    text = scheduler.write([1] * 40, max_new_tokens=3).text
    assert prompt_read(text) == 0
    seen = []
    while scheduler.busy:
        scheduler.step()
        seen.append(prompt_read(text))
    assert seen == [16, 32, 40, 40, 40]


class SlowHandle:
    """Reads 1,000 of 4,000 tokens a look, then writes."""

    def __init__(self) -> None:
        self.prompt_read = 0
        self.looks = 0
        self.written = threading.Event()

    @property
    def statistics(self) -> Any:
        self.looks += 1
        self.prompt_read = min(self.looks * 1000, 4000)
        emitted = max(self.looks - 4, 0)
        if emitted:
            self.written.set()
        return SimpleNamespace(prompt_tokens=4000, emitted=emitted)


def test_a_terminal_shows_how_far_the_prompt_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(progress, "watched", lambda: True)
    monkeypatch.setattr(progress, "error_console", lambda: Console(file=shown, force_terminal=True, width=120))
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    handle = SlowHandle()
    with progress.shown_while_waiting(handle, 128):  # type: ignore[arg-type]
        assert handle.written.wait(20)
        time.sleep(0.3)
    for text in ("reading the prompt", "of 4,000 tokens", "writing", "of 128 tokens"):
        assert text in shown.getvalue()
    assert shown.getvalue().endswith("\x1b[2K"), "the line is taken away"


def test_short_waits_and_pipes_show_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for watched in (True, False):
        monkeypatch.setattr(progress, "watched", lambda answer=watched: answer)
        with progress.shown_while_waiting(SlowHandle(), 128):  # type: ignore[arg-type]
            pass
    assert capfd.readouterr() == ("", "")
