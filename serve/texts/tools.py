"""Calls of tools, read from the text that a model writes: in the two forms that most templates teach.

hermes    <tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>, any number of them
llama 3   {"name": "weather", "parameters": {"city": "Paris"}}, the whole text
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from tokenizers import Tokenizer

from mxspec.runtime.grammars.grammar import Grammar
from mxspec.runtime.text.chat import ChatTemplate

CallStyle = Literal["hermes", "llama", "generic"]  # generic: as hermes, where the template says nothing of tools
OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TAG = "<|python_tag|>"


def call_style(template: ChatTemplate) -> CallStyle:
    """The form of calls that a template teaches its model; generic where it teaches none that is known."""
    source = template.tool_source
    if source is None:
        return "generic"
    if OPEN in source:
        return "hermes"
    if '"parameters"' in source and ("ipython" in source or _TAG in source):
        return "llama"
    return "generic"


class CallReader:
    """Splits a text as it comes: hands on the text outside calls, and at the end the calls."""

    def __init__(self, style: CallStyle, names: Collection[str], *, several: bool = True) -> None:
        self._read = _llama if style == "llama" else _hermes
        self._begins = _llama_begins if style == "llama" else _hermes_begins
        self._names = names
        self._several = several
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
        """The rest of the text outside calls, and the calls in OpenAI's form.

        An invalid call is text, and so is one of a tool that was not offered.
        """
        found = self._read(self._held) if self._held else None
        if found is None or any(call["function"]["name"] not in self._names for call in found[1]):
            return self._held, []
        rest, calls = found
        return rest, calls if self._several else calls[:1]


def _hermes_begins(text: str, _all: bool) -> int:
    """The place where a call begins, or may begin."""
    at = text.find(OPEN)
    if at >= 0:
        return at
    longest = min(len(OPEN) - 1, len(text))
    return len(text) - next((n for n in range(longest, 0, -1) if OPEN.startswith(text[-n:])), 0)


def _llama_begins(text: str, all_of_it: bool) -> int:
    """The place where a call begins, or may begin; only the whole text is a call."""
    if not all_of_it:
        return len(text)
    begins = text.lstrip()
    possible = not begins or begins.startswith("{") or _TAG.startswith(begins[: len(_TAG)])
    return 0 if possible else len(text)


def _hermes(text: str) -> tuple[str, list[dict[str, Any]]] | None:
    calls = []
    for body in re.findall(rf"{OPEN}(.*?)(?:{CLOSE}|\Z)", text, re.DOTALL):
        call = _call(body, "arguments")
        if call is None:
            return None
        calls.append(call)
    rest = re.sub(rf"{OPEN}.*?(?:{CLOSE}|\Z)", "", text, flags=re.DOTALL).strip()
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


NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


def call_grammar(
    style: CallStyle, tools: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, *, forced: bool, several: bool
) -> Grammar:
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
        tags = {tag: _tag(tag, tokenizer) for tag in (OPEN, CLOSE)}
        more = f"({_quoted(chr(10))} {tags[OPEN]} tagged)*" if several else ""
        start = f"{tags[OPEN]} tagged {more}" if forced else f"TEXT | opened tagged {more}"
        lines += [f"tagged: {_quoted(chr(10))} call {_quoted(chr(10))} {tags[CLOSE]}"]
        lines += [f"TEXT: /(.|\\n)*/ & ~/(.|\\n)*{OPEN}(.|\\n)*/"]
        # The lexer does not go back: what ends with a spelled tag is a token of its own, which ends at the first tag.
        lines += [f"opened: TEXT? {OPEN}" if tags[OPEN] == OPEN else f"opened[lazy]: /(.|\\n)*{OPEN}/"]
        if any(tokenizer.token_to_id(tag) is not None and spelled != tag for tag, spelled in tags.items()):
            lines.append('%llguidance {"no_forcing": true}')  # forced text would be the token again
    return Grammar.lark("\n".join([f"start: {start}", *lines]))


def _tag(tag: str, tokenizer: Tokenizer) -> str:
    """A tag in Lark: the token that it is, or its letters if it is none, or one that is left out of texts."""
    added = tokenizer.get_added_tokens_decoder().values()
    return tag if any(token.content == tag and not token.special for token in added) else _quoted(tag)


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments; what llguidance does not know of it holds for a strict one only."""
    spaced = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as models have seen calls
    return {**(tool.get("parameters") or NOTHING), "x-guidance": {**spaced, "lenient": not tool.get("strict")}}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_INSTRUCTIONS = f"""You can call functions. These are their signatures:
<tools>
%s
</tools>
To call one, write its name and arguments as JSON between these tags:
{OPEN}
{{"name": "the name", "arguments": {{"an argument": "its value"}}}}
{CLOSE}"""


def with_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A chat that describes the tools, with its calls and their results as texts."""
    described = _INSTRUCTIONS % "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    chat = [_as_text(message) for message in messages]
    if chat[0]["role"] == "system":
        return [{**chat[0], "content": f"{chat[0]['content']}\n\n{described}"}, *chat[1:]]
    return [{"role": "system", "content": described}, *chat]


def _as_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [f"{OPEN}\n{json.dumps(call['function'], ensure_ascii=False)}\n{CLOSE}" for call in message["tool_calls"]]
    return {"role": message["role"], "content": "\n".join(filter(None, [message.get("content"), *calls]))}
