"""Calls of tools, read from the text that a model writes: in the two forms that most templates teach.

hermes    <tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>, any number of them
llama 3   {"name": "weather", "parameters": {"city": "Paris"}}, the whole text
"""

from __future__ import annotations

import json
import re
import secrets
from typing import Any, Literal

from mxspec.formats.errors import GenerationError
from mxspec.runtime.text.chat import ChatTemplate

CallStyle = Literal["hermes", "llama"]
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_TAG = "<|python_tag|>"


def call_style(template: ChatTemplate) -> CallStyle:
    """The form of calls that a template teaches its model; raises GenerationError for an unknown form."""
    source = template.tool_source
    if source is None:
        raise GenerationError("its chat template does not describe tools")
    if _OPEN in source:
        return "hermes"
    if '"parameters"' in source and ("ipython" in source or _TAG in source):
        return "llama"
    raise GenerationError("its chat template has calls in an unknown form (known: <tool_call>, Llama 3's JSON)")


class CallReader:
    """Splits a text as it comes: hands on the text outside calls, and at the end the calls."""

    def __init__(self, style: CallStyle) -> None:
        self._read = _hermes if style == "hermes" else _llama
        self._begins = _hermes_begins if style == "hermes" else _llama_begins
        self._shown = 0  # number of characters before the held text
        self._held = ""  # text that may be a call

    def push(self, text: str) -> str:
        """The text that cannot be part of a call any more."""
        self._held += text
        begins = self._begins(self._held, self._shown == 0)
        shown, self._held = self._held[:begins], self._held[begins:]
        self._shown += len(shown)
        return shown

    def finish(self) -> tuple[str, list[dict[str, Any]]]:
        """The rest of the text outside calls, and the calls in OpenAI's form; an invalid call is text."""
        found = self._read(self._held) if self._held else None
        return (self._held, []) if found is None else found


def _hermes_begins(text: str, _all: bool) -> int:
    """The place where a call begins, or may begin."""
    at = text.find(_OPEN)
    if at >= 0:
        return at
    longest = min(len(_OPEN) - 1, len(text))
    return len(text) - next((n for n in range(longest, 0, -1) if _OPEN.startswith(text[-n:])), 0)


def _llama_begins(text: str, all_of_it: bool) -> int:
    """The place where a call begins, or may begin; only the whole text is a call."""
    if not all_of_it:
        return len(text)
    begins = text.lstrip()
    possible = not begins or begins.startswith("{") or _TAG.startswith(begins[: len(_TAG)])
    return 0 if possible else len(text)


def _hermes(text: str) -> tuple[str, list[dict[str, Any]]] | None:
    calls = []
    for body in re.findall(rf"{_OPEN}(.*?)(?:{_CLOSE}|\Z)", text, re.DOTALL):
        call = _call(body, "arguments")
        if call is None:
            return None
        calls.append(call)
    rest = re.sub(rf"{_OPEN}.*?(?:{_CLOSE}|\Z)", "", text, flags=re.DOTALL).strip()
    return (rest, calls) if calls else None


def _llama(text: str) -> tuple[str, list[dict[str, Any]]] | None:
    call = _call(text.strip().removeprefix(_TAG), "parameters")
    return None if call is None else ("", [call])


def _call(text: str, key: str) -> dict[str, Any] | None:
    """One call, its arguments as JSON in a string; None for an invalid one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get(key, found.get("arguments", {}))
    if not isinstance(arguments, dict):
        return None
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": found["name"], "arguments": json.dumps(arguments, ensure_ascii=False)},
    }
