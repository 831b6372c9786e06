"""Untrusted templates, rendered by a process of their own within limits of time and memory.

A budget of steps inside the interpreter cannot bound what one call of Python's own functions takes. A process can be
ended, so template_sandbox.py renders in one that is started with the first template and kept.
"""

from __future__ import annotations

import atexit
from datetime import datetime
from typing import Any

from jinja2 import TemplateError

from mxspec.formats.errors import UnavailableError
from mxspec.runtime.guarded.process import GuardedProcess, ProcessEndedError, RefusedError

SECONDS = 8.0  # of processor time for one template; a chat of 10 million characters takes about one


class TemplateProcess:
    """The process, and what it is asked; safe from any number of threads, which take turns."""

    def __init__(self) -> None:
        self._process = GuardedProcess("mxspec.runtime.text.template_sandbox")

    def names(self, source: str) -> frozenset[str]:
        """The names of the variables that a template uses.

        Raises TemplateError for an invalid template, and UnavailableError where the process was ended from outside.
        """
        return frozenset(self._ask(source).splitlines())

    def render(self, source: str, variables: dict[str, Any], now: datetime | None) -> str:
        """The text of a template; raises TemplateError for every error in it, and UnavailableError."""
        return self._ask(source, variables, None if now is None else now.isoformat())

    def close(self) -> None:
        """End the process; the next request starts another."""
        self._process.close()

    def _ask(self, *request: Any) -> str:
        try:
            return self._process.ask(SECONDS, *request)
        except ProcessEndedError as error:
            raise UnavailableError("messages", str(error)) from None
        except RefusedError as error:
            raise TemplateError(str(error)) from None


TEMPLATES = TemplateProcess()
atexit.register(TEMPLATES.close)
