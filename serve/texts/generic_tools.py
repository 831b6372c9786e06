"""Tools for a model whose chat template has no place for them: described by the system, called as Hermes calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mxspec.serve.texts.tools import CLOSE, OPEN

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
