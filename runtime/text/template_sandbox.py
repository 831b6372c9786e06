"""jinja2 for untrusted templates: transformers' environment, and an end to loops that would never end.

Templates are written for `transformers.utils.chat_template_utils` (5.23): the same options, extensions, filters and
globals are here. A template can neither reach Python's internals nor change what it is given. It has a budget of steps
(turns of loops, and calls), and of characters for the operators that make text, so that most errors are reported
at once. The process that runs this file (template_process.py) bounds the time and memory of filters, methods and
comparisons. A request is a source, for the names of its variables, or (source, variables, now).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from jinja2 import Environment, Template, TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from mxspec.runtime.guarded.child import answer_requests, ignore_interrupts, limit_memory

STEPS = 300_000  # steps of a rendering; a chat of 1,000 messages takes about 10,000
CHARACTERS = 1 << 24  # characters of a text; a context of a million tokens has about a quarter
BITS = 4096  # bits of a whole number

_steps_left: ContextVar[list[int]] = ContextVar("steps_left")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles templates that count their steps while they are rendered."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"])
        self.filters |= {"tojson": _tojson, "counted": _counted, "concatenated": _concatenated}
        self.globals |= {"raise_exception": _raise_exception, "dict": _Dict(), "namespace": _Namespace}
        del self.globals["lipsum"]

    def template(self, source: str) -> Template:
        """A template whose loops and concatenations are counted; raises TemplateSyntaxError."""
        tree = _Counting(self).visit(self.parse(source))
        return self.template_class.from_code(self, self.compile(tree), self.make_globals(None))

    def render(self, template: Template, variables: dict[str, Any]) -> str:
        """The text of a template; raises TemplateError, and whatever else a template can make Python raise."""
        token = _steps_left.set([STEPS])
        try:
            pieces, length = [], 0
            for piece in template.generate(variables):
                pieces.append(piece)
                length += len(piece)
                _check_length(length)
            return "".join(pieces)
        finally:
            _steps_left.reset(token)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _count_step()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > BITS and operator != "%":
                raise TemplateError(f"a number of more than {BITS} bits")
        elif operator == "*":
            text, times = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(times, int) and hasattr(text, "__len__"):
                _check_length(len(text) * times)
        elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            _check_length(len(left) + len(right))
        made = super().call_binop(context, operator, left, right)
        if operator == "%" and isinstance(made, str):
            _check_length(len(made))
        return made


class _Counting(NodeTransformer):
    """Puts the filters that count around what loops run over, and in the place of concatenations."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def visit_For(self, loop: nodes.For) -> nodes.For:
        self.generic_visit(loop)
        assert isinstance(loop.iter, nodes.Expr)
        loop.iter = self._filter(loop.iter, "counted")
        return loop

    def visit_Concat(self, parts: nodes.Concat) -> nodes.Filter:
        self.generic_visit(parts)
        return self._filter(nodes.List(parts.nodes, environment=self._environment), "concatenated")

    def _filter(self, node: nodes.Expr, name: str) -> nodes.Filter:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno or 1, environment=self._environment)


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


@pass_context  # or the optimizer would run it when the template is compiled
def _counted(_context: Context, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _count_step()
        yield value


@pass_context
def _concatenated(_context: Context, values: list[Any]) -> str:
    text = "".join(map(str, values))
    _check_length(len(text))
    return text


def _count_step() -> None:
    left = _steps_left.get()
    left[0] -= 1
    if left[0] < 0:
        raise TemplateError(f"more than {STEPS} loop iterations and calls")


def _check_length(length: int) -> None:
    if length > CHARACTERS:
        raise TemplateError(f"a text of more than {CHARACTERS} characters")


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
