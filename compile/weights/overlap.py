"""Reading ahead and writing behind, so that the disk and the packer work at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, TypeVar

Item = TypeVar("Item")


def read_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the same items; a thread makes the next item while the caller works on one."""
    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(next, items, None)
        while (item := pending.result()) is not None:
            pending = thread.submit(next, items, None)
            yield item


class WriteBehind:
    """Runs calls in order on a thread, at most two behind; an error is raised at a later call or at the end.

    After an error no waiting call is run, because it would write after a gap.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._pending: deque[Future[Any]] = deque()
        self._failed = False

    def __call__(self, call: Callable[..., object], *arguments: Any) -> None:
        """Queue a call, waiting for the one before the last."""
        self._pending.append(self._thread.submit(self._run, call, *arguments))
        while len(self._pending) > 2:
            self._pending.popleft().result()

    def _run(self, call: Callable[..., object], *arguments: Any) -> None:
        if self._failed:
            return
        try:
            call(*arguments)
        except BaseException:
            self._failed = True
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.shutdown(cancel_futures=kind is not None)
        if kind is None:
            for pending in self._pending:
                pending.result()
