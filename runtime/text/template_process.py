"""Untrusted templates, rendered by a process of their own within limits of time and memory.

A budget of steps inside the interpreter cannot bound what one call of Python's own functions takes. A process can be
ended, so template_child.py renders in one that is started with the first template and kept. One that ended is
replaced with the next request.
"""

from __future__ import annotations

import atexit
import marshal
import os
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from threading import Lock
from typing import Any

from jinja2 import TemplateError

SECONDS = 8.0  # for one template; a chat of 10 million characters takes about one
_ERROR, _LAST = "!", "."  # as template_child.py has them


class TemplateProcess:
    """The process and the pipes to it; safe from any number of threads, which take turns."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def names(self, source: str) -> frozenset[str]:
        """The names of the variables that a template uses; raises TemplateError for an invalid template."""
        return frozenset(self._ask(source).splitlines())

    def render(self, source: str, variables: dict[str, Any], now: datetime | None) -> str:
        """The text of a template; raises TemplateError for every error in it."""
        return self._ask(source, variables, None if now is None else now.isoformat())

    def close(self) -> None:
        """End the process; the next request starts another."""
        with self._lock:
            self._end()

    def _ask(self, *request: Any) -> str:
        message = marshal.dumps((SECONDS, *request))
        with self._lock:
            child = self._running()
            assert child.stdin is not None
            assert child.stdout is not None
            answer = size = b""
            with suppress(BrokenPipeError):
                child.stdin.write(len(message).to_bytes(8) + message)
                child.stdin.flush()
                size = child.stdout.read(8)
                answer = child.stdout.read(int.from_bytes(size))
            if not answer or len(answer) < int.from_bytes(size):
                raise TemplateError(_death(self._end()))
            text = answer.decode("utf-8", "surrogatepass")
            if text.startswith(_LAST):
                self._end()
        if text.startswith((_ERROR, _LAST)):
            raise TemplateError(text[1:])
        return text[1:]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._owner == os.getpid() and self._child.poll() is None:
            return self._child
        self._end()
        self._owner = os.getpid()
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "mxspec.runtime.text.template_child"],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return self._child

    def _end(self) -> int:
        """Close the pipes, which ends the process; its exit status."""
        child, self._child = self._child, None
        if child is None or self._owner != os.getpid():  # a child of the process that this one was forked from
            return 0
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        return child.wait()


def _death(status: int) -> str:
    if status == -signal.SIGALRM:
        return f"more than {SECONDS:g} seconds"
    return f"it ended the process that renders it (status {status})"


TEMPLATES = TemplateProcess()
atexit.register(TEMPLATES.close)
