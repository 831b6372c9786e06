"""The thread that owns a scheduler: it takes requests from any thread and steps while there is something to do."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from collections.abc import Sequence as Samples
from concurrent.futures import Future
from typing import Any, TypeVar

from mxspec.formats.errors import GenerationError, UnavailableError
from mxspec.runtime.scheduling.scheduled_text import ScheduledText
from mxspec.runtime.scheduling.scheduler import Scheduler

Result = TypeVar("Result")


class QueueFullError(UnavailableError):
    """The queue of waiting requests is full."""


class Worker:
    """Runs a scheduler's steps on one thread, which starts with the first request."""

    def __init__(self, scheduler: Scheduler, queue: int) -> None:
        self._scheduler = scheduler
        self._queue = queue
        self._changed = threading.Condition()
        self._inbox: list[Samples[ScheduledText]] = []
        self._calls: list[tuple[Future[Any], Callable[[], Any]]] = []  # to be made between two steps
        self._closing = False
        self._error: GenerationError | None = None  # why the thread ended without close()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def submit(self, requests: Samples[Samples[ScheduledText]]) -> None:
        """Queue the samples of some requests; they begin in the same step if there is room.

        Raises GenerationError if the worker is closed, the process was forked, or the queue is full.
        """
        self._require_own_process()
        with self._changed:
            self._require_open()
            waiting = len(self._inbox) + self._scheduler.waiting
            if waiting + len(requests) > self._queue + self._scheduler.free:
                raise QueueFullError(
                    "engine", f"{waiting} requests are already waiting, expected at most {self._queue}"
                )
            self._start()
            self._inbox += requests
            self._changed.notify()

    def call(self, function: Callable[[], Result]) -> Result:
        """What `function` returns or raises, called by the worker's thread between two steps.

        Raises GenerationError if the worker is closed, or the process was forked.
        """
        future: Future[Result] = Future()
        self._require_own_process()
        with self._changed:
            self._require_open()
            self._start()
            self._calls.append((future, function))
            self._changed.notify()
        return future.result()

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="mxspec-engine", daemon=True)
            thread.start()  # raises if the system has no thread left
            self._thread = thread

    def _require_own_process(self) -> None:
        """Called without the lock: another thread may have held it when the process was forked."""
        if os.getpid() != self._pid:
            raise GenerationError("engine", "belongs to the process that made it; make another after the fork")

    def _require_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closing:
            raise UnavailableError("engine", "closed, no text can be begun")

    @property
    def running(self) -> int:
        """Number of texts that have slots."""
        return self._scheduler.running

    def wake(self) -> None:
        """Wake the thread after a text was cancelled."""
        if os.getpid() == self._pid:
            with self._changed:
                self._changed.notify()

    def close(self) -> None:
        """End all texts as cancelled, then the thread."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        try:
            self._run()
        except BaseException as error:  # a panic in a library or a bug here: every reader gets an error
            with self._changed:
                self._error = UnavailableError("engine", f"failed, make another: {type(error).__name__}: {error}")
                self._error.__cause__ = error
                for future, _ in self._calls:
                    future.set_exception(self._error)
                for samples in self._inbox:
                    self._scheduler.add(samples)
            self._scheduler.end_all(self._error)

    def _run(self) -> None:
        scheduler = self._scheduler
        while True:
            with self._changed:
                while not (self._inbox or self._calls or scheduler.busy or self._closing):
                    self._changed.wait()
                inbox, self._inbox = self._inbox, []
                calls, self._calls = self._calls, []
            for future, function in calls:
                try:
                    future.set_result(function())
                except Exception as error:
                    future.set_exception(error)
            for samples in inbox:
                scheduler.add(samples)
            if self._closing:
                scheduler.end_all()
                return
            scheduler.step()
