"""Calls of tools: forced, named, strict, one at a time, and of tools that were not offered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mxspec.runtime.grammars.grammar import Grammar
from mxspec.serve.texts.tools import CallReader, CallStyle, call_grammar, with_tools
from tests.runtime.grammars.test_grammar import EOS, TOKENIZERS

from .conftest import Server

SCHEMA = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}},
    "required": ["on"],
    "additionalProperties": False,
}
CALL = '<tool_call>\n{"name": "f", "arguments": {"on": true}}\n</tool_call>'


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **more}}


def ask(server: Server, **fields: Any) -> dict[str, Any]:
    chat = {"messages": [{"role": "user", "content": "x"}], "temperature": 0, **fields}
    answer = server.post("/v1/chat/completions", chat)
    assert answer.status == 200, answer.body
    choice: dict[str, Any] = answer.json["choices"][0]
    return choice


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "g"}}], ids=["required", "named"]
)
def test_a_forced_call_is_one_whatever_the_model(server: Server, choice: Any) -> None:
    found = ask(server, tools=[tool("f"), tool("g")], tool_choice=choice, parallel_tool_calls=False)
    (call,) = found["message"]["tool_calls"]
    assert found["finish_reason"] == "tool_calls"
    assert call["function"]["name"] in (("f", "g") if choice == "required" else "g")
    assert {*json.loads(call["function"]["arguments"])} == {"on"}


def test_a_forced_call_in_a_stream(server: Server) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}], "tools": [tool("f")], "temperature": 0}
    answer = server.post("/v1/chat/completions", chat | {"tool_choice": "required", "stream": True, "max_tokens": 66})
    deltas = [event["choices"][0]["delta"] for event in answer.events[:-1]]
    (calls,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["function"]["name"] == "f"
    assert not any(delta.get("content") for delta in deltas)


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether a text is a sentence of a grammar, by its bytes."""
    tokenizer = TOKENIZERS["byte-level"]
    matcher = grammar.compile(tokenizer, [EOS], tokenizer.get_vocab_size())
    for token in tokenizer.encode(text).ids:
        mask = matcher.mask(())
        if mask is not None and not mask.allows(token):
            return False
        matcher.keep([token])
    mask = matcher.mask(())
    return mask is None or mask.allows(EOS)


@pytest.mark.parametrize(
    ("text", "forced", "several", "good"),
    [
        (CALL, True, False, True),
        (f"{CALL}\n{CALL}", True, True, True),
        (f"{CALL}\n{CALL}", True, False, False),
        ("ab", True, True, False),
        ("ab", False, True, True),
        ("a < b " + CALL, False, True, True),
        (CALL.replace("true", "12"), False, True, False),
        (CALL.replace('"f"', '"h"'), False, True, False),
    ],
)
def test_the_grammar_of_calls(text: str, forced: bool, several: bool, good: bool) -> None:
    functions = [tool("f", strict=True)["function"], {"name": "nothing"}]
    assert accepts(call_grammar("hermes", functions, forced=forced, several=several), text) == good


@pytest.mark.parametrize(
    ("text", "forced", "good"),
    [
        ('{"name": "f", "parameters": {"on": true}}', True, True),
        ('{"name": "f", "parameters": {"on": 12}}', False, False),
        ("ab", False, True),
        ("ab", True, False),
    ],
)
def test_the_grammar_of_llamas_calls(text: str, forced: bool, good: bool) -> None:
    assert accepts(call_grammar("llama", [tool("f")["function"]], forced=forced, several=True), text) == good


@pytest.mark.parametrize(
    ("style", "text"),
    [("hermes", CALL), ("generic", CALL), ("llama", '{"name": "f", "parameters": {"on": true}}')],
)
def test_only_what_was_offered_is_called(style: CallStyle, text: str) -> None:
    for names, calls in ((("f", "g"), 1), (("g",), 0)):
        reader = CallReader(style, names)
        shown = reader.push(text)
        rest, found = reader.finish()
        assert len(found) == calls
        assert shown + rest == ("" if calls else text)
    if style != "llama":
        assert len(CallReader(style, ["f"], several=False).finish()[1]) == 0
        one = CallReader(style, ["f"], several=False)
        one.push(text * 2)
        assert len(one.finish()[1]) == 1


def test_a_template_without_tools_gets_them_as_texts() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": {"on": True}}}
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "7", "tool_call_id": "1"},
    ]
    system, user, called, result = with_tools(chat, [tool("f")])
    assert system["content"].startswith("Be brief.\n\n")
    assert json.dumps(tool("f")) in system["content"]
    assert user == chat[1]
    assert called == {"role": "assistant", "content": CALL}
    assert result == {"role": "user", "content": "<tool_response>\n7\n</tool_response>"}
    assert with_tools(chat[1:2], [tool("f")])[0]["role"] == "system"
