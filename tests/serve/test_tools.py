"""Calls of tools: forced, named, strict, one at a time, and of tools that were not offered."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from mxspec.runtime.grammars.grammar import Grammar
from mxspec.serve.texts.tools import CLOSE, OPEN, CallReader, CallStyle, call_grammar, with_tools
from tests.runtime.grammars.test_grammar import EOS, TOKENIZERS, byte_level

from .conftest import SCHEMA, Server, Serving, write_file

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


@pytest.fixture(scope="module")
def tagged(bundle: Path, serving: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a model whose tokenizer has the tag that begins a call as one token."""
    copy = tmp_path_factory.mktemp("tagged") / "tagged.bundle"
    shutil.copytree(bundle, copy)
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    tokenizer["added_tokens"][2] |= {"content": OPEN, "special": False}
    write_file(copy, "tokenizer.json", json.dumps(tokenizer))
    manifest = (copy / "manifest.json").read_text()
    (copy / "manifest.json").write_text(re.sub(r'("eos_token_ids": \[257), 258', r"\1", manifest))
    with serving(copy) as server:
        yield server


@pytest.mark.parametrize("streamed", [True, False])
def test_a_forced_call_whose_tag_is_a_token(tagged: Server, streamed: bool) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}], "tools": [tool("f")], "tool_choice": "required"}
    answer = tagged.post("/v1/chat/completions", chat | {"stream": streamed, "max_tokens": 66})
    assert answer.status == 200, answer.body
    choices = [event["choices"][0] for event in answer.events[:-1]] if streamed else answer.json["choices"]
    calls = [call for choice in choices for call in choice.get("delta", choice.get("message")).get("tool_calls", ())]
    assert calls[0]["function"]["name"] == "f"


@pytest.mark.parametrize("streamed", [True, False])
def test_an_expression_that_spells_a_token_is_refused(tagged: Server, streamed: bool) -> None:
    body = {"prompt": "x", "stream": streamed, "mxspec": {"regex": f"{OPEN}[a-z]+"}}
    error = tagged.post("/v1/completions", body).json["error"]
    assert (error["param"], f"spells {OPEN}" in error["message"]) == ("mxspec.regex", True)
    body["mxspec"] = {"lark": f"start: {OPEN} /[a-z]/"}
    assert tagged.post("/v1/completions", body).status == 200


def test_a_forced_call_in_a_stream(server: Server) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}], "tools": [tool("f")], "temperature": 0}
    answer = server.post("/v1/chat/completions", chat | {"tool_choice": "required", "stream": True, "max_tokens": 66})
    deltas = [event["choices"][0]["delta"] for event in answer.events[:-1]]
    (calls,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["function"]["name"] == "f"
    assert not any(delta.get("content") for delta in deltas)


def with_tags(special: bool) -> Tokenizer:
    """A tokenizer in which a tag is one token, as in those of Qwen 2.5 and 3, where it is none of the special ones."""
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken(tag, special=special, normalized=False) for tag in (OPEN, CLOSE)])
    return tokenizer


TAGGED = {"no token": TOKENIZERS["byte-level"], "token": with_tags(False), "special token": with_tags(True)}


def accepts(grammar: Grammar, text: str, tokenizer: Tokenizer = TAGGED["no token"]) -> bool:
    """Whether a text is a sentence of a grammar, by its bytes."""
    matcher = grammar.compile(tokenizer, [EOS], tokenizer.get_vocab_size())
    tokenizer.encode_special_tokens = True  # those are no text
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
@pytest.mark.parametrize("tags", TAGGED)
def test_the_grammar_of_calls(tags: str, text: str, forced: bool, several: bool, good: bool) -> None:
    functions, tokenizer = [tool("f", strict=True)["function"], {"name": "nothing"}], TAGGED[tags]
    grammar = call_grammar("hermes", functions, tokenizer, forced=forced, several=several)
    assert accepts(grammar, text, tokenizer) == good


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
    assert (
        accepts(call_grammar("llama", [tool("f")["function"]], TAGGED["token"], forced=forced, several=True), text)
        == good
    )


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
