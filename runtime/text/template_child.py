"""The child of template_process.py: compiles and renders templates within limits of time and memory.

Requests and answers are a length in 8 bytes, then that many bytes: (seconds, source) or
(seconds, source, variables, now) as marshal writes them, and a text whose first letter says whether it is the result,
an error, or the last error.
"""

from __future__ import annotations

import marshal
import resource
import signal
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any, BinaryIO

from jinja2 import Template
from jinja2.meta import find_undeclared_variables

from mxspec.runtime.text.template_sandbox import TemplateSandbox

MEMORY_BYTES = 400 << 20  # of address space, the interpreter's included
KEPT = 64  # templates
RESULT, ERROR, LAST = "=", "!", "."  # the last error: of a process that has had too little memory


class Renderer:
    """Templates that are compiled when they are first seen."""

    def __init__(self) -> None:
        self._sandbox = TemplateSandbox()
        self._templates: dict[str, Template] = {}

    def answer(self, source: str, variables: dict[str, Any] | None = None, now: str | None = None) -> str:
        """The text of a template; without variables, the names of the variables that it uses, one a line."""
        if source not in self._templates:
            if len(self._templates) == KEPT:
                self._templates.clear()
            self._templates[source] = self._sandbox.template(source)
        if variables is None:
            return "\n".join(find_undeclared_variables(self._sandbox.parse(source)))
        given = None if now is None else datetime.fromisoformat(now)
        clock = {"strftime_now": lambda format: (given or datetime.now()).strftime(format)}
        return self._sandbox.render(self._templates[source], variables | clock)


def main(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the requests end, or until a template has taken too much memory; too much time ends the process."""
    renderer = Renderer()
    text = ""
    while not text.startswith(LAST) and (size := requests.read(8)):
        seconds, *request = marshal.loads(requests.read(int.from_bytes(size)))
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            text = RESULT + renderer.answer(*request)
        except MemoryError:
            text = f"{LAST}more than {MEMORY_BYTES >> 20} MB of memory"
        except Exception as error:  # a template can make Python raise anything
            text = ERROR + one_line(error)
        encoded = text.encode("utf-8", "surrogatepass")
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(len(encoded).to_bytes(8) + encoded)
        answers.flush()


def one_line(error: BaseException) -> str:
    """The message of an error as one line of at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."


def limit_memory() -> None:
    """Limit the address space to MEMORY_BYTES, where the system allows a limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    with suppress(OSError, ValueError):  # a filter of system calls, as of a service, may refuse it
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end is the end of the requests
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process in the midst of a C function, too
    limit_memory()
    main(sys.stdin.buffer, sys.stdout.buffer)
