"""Grammars of answers that have to call a tool, or whose calls have to keep to a schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mxspec.runtime.grammars.grammar import Grammar
from mxspec.serve.texts.tools import CLOSE, OPEN, CallStyle

NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


def call_grammar(style: CallStyle, tools: Sequence[Mapping[str, Any]], *, forced: bool, several: bool) -> Grammar:
    """Calls of these functions, at least one if `forced`, else text before them or alone; one if not `several`."""
    names = [f"call_{number}" for number in range(len(tools))]
    key = "parameters" if style == "llama" else "arguments"
    lines = [f"call: {' | '.join(names)}"]
    for name, tool in zip(names, tools, strict=True):
        before = f'{{"name": {json.dumps(tool["name"])}, "{key}": '
        lines.append(f'{name}: {_quoted(before)} %json {json.dumps(_schema(tool))} "}}"')
    if style == "llama":
        start = "call" if forced else "call | TEXT"
        lines.append("TEXT: /[^{\\s](.|\\n)*/")
    else:
        after = f"tagged: {_quoted(chr(10))} call {_quoted(chr(10) + CLOSE)}"
        more = f"({_quoted(chr(10) + OPEN)} tagged)*" if several else ""
        start = f"{_quoted(OPEN)} tagged {more}" if forced else f"TEXT | opened tagged {more}"
        # The lexer does not go back: what ends with the tag is a token of its own, which ends at the first tag.
        lines += [after, f"TEXT: /(.|\\n)*/ & ~/(.|\\n)*{OPEN}(.|\\n)*/", f"opened[lazy]: /(.|\\n)*{OPEN}/"]
    return Grammar.lark("\n".join([f"start: {start}", *lines]))


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments; what llguidance does not know of it holds for a strict one only."""
    spaced = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as models have seen calls
    return {**(tool.get("parameters") or NOTHING), "x-guidance": {**spaced, "lenient": not tool.get("strict")}}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
