"""The child of template_process.py: compiles and renders templates within limits of time and memory.

A request is a source, for the names of its variables, or (source, variables, now).
"""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

from jinja2 import Template
from jinja2.meta import find_undeclared_variables

from mxspec.runtime.guarded.child import answer_requests, ignore_interrupts, limit_memory
from mxspec.runtime.text.template_sandbox import TemplateSandbox

MEMORY_BYTES = 400 << 20  # of address space, the interpreter's included
KEPT = 64  # templates


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


if __name__ == "__main__":
    ignore_interrupts()
    limit_memory(MEMORY_BYTES)
    answer_requests(sys.stdin.buffer, sys.stdout.buffer, Renderer().answer, MEMORY_BYTES)
