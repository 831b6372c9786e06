"""jinja2 for untrusted templates, as transformers sets it up.

Templates are written for `transformers.utils.chat_template_utils` (5.23): the same options, extensions, filters and
globals are here. A template can neither reach Python's internals nor change what it is given. What takes too much time
or memory ends the process that runs it: this file is run by one that forks another for each text (guarded/).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from mxspec.runtime.guarded.forking import Answer, Bounds, fork_for_each, limit_memory

BOUNDS = Bounds(memory_bytes=400 << 20, stack_bytes=8 << 20, niceness=0)  # each chat waits for its text
LONGEST_TEXT = 1 << 24  # characters; a context of a million tokens has about a quarter


class GenerationTag(Extension):
    """{% generation %} … {% endgeneration %}: marks, for training, what the assistant says. Here it only scopes it."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict` without the attributes of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """jinja2's namespace, for names without an underscore at their beginning."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` is a name that a template may use
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no attribute {name!r}")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is: jinja2's own filter escapes what is special in HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def prepare(*sources: str) -> Answer:
    """A function that renders one of these templates, by its number; without variables, it gives their names.

    Raises TemplateError for a template that cannot be compiled.
    """
    limit_memory(BOUNDS.memory_bytes)
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    sandbox.filters["tojson"] = _tojson
    sandbox.globals |= {"raise_exception": _raise_exception, "dict": _Dict(), "namespace": _Namespace}
    del sandbox.globals["lipsum"]
    templates = [sandbox.from_string(source) for source in sources]

    def answer(number: int, variables: dict[str, Any] | None = None, now: str | None = None) -> str:
        if variables is None:
            return "\n".join(find_undeclared_variables(sandbox.parse(sources[number])))
        given = None if now is None else datetime.fromisoformat(now)
        clock = {"strftime_now": lambda format: (given or datetime.now()).strftime(format)}
        text = templates[number].render(variables | clock)
        if len(text) > LONGEST_TEXT:
            raise TemplateError(f"a text of more than {LONGEST_TEXT} characters")
        return text

    return answer


if __name__ == "__main__":
    fork_for_each(prepare, BOUNDS)
