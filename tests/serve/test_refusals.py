"""Every field that is wrong, unknown or not supported is refused by its name; a list of them, sent to a server."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_params

from mxspec.formats.errors import ContextLengthError
from mxspec.runtime.engine import Engine
from mxspec.runtime.text.chat import ChatTemplate
from mxspec.serve.routes.chat import REFUSALS, ChatRequest
from mxspec.serve.routes.completions import REFUSALS as COMPLETION_REFUSALS
from mxspec.serve.routes.completions import CompletionRequest
from mxspec.serve.texts.fields import OF_OTHERS

from .conftest import Server, Serving

WHOLE: dict[str, Any] = {"model": "tiny", "prompt": "x", "max_tokens": 4, "temperature": 0}
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "x"}],
    "max_tokens": 4,
    "temperature": 0,
}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.fixture(scope="module")
def server(bundle: Path, serving: Serving) -> Iterator[Server]:
    with serving(bundle, "--n-limit", "4", "--prompts-limit", "3", "--body-limit", "0.01") as server:
        yield server


def test_every_field_that_openai_has_is_known() -> None:
    completions = completion_create_params.CompletionCreateParamsBase.__annotations__.keys() | {"stream"}
    ours = {"mxspec", *OF_OTHERS}
    assert completions == (CompletionRequest.model_fields.keys() | COMPLETION_REFUSALS.keys()) - ours
    chats = chat_params.CompletionCreateParamsBase.__annotations__.keys() | {"stream"}
    ours |= {"chat_template_kwargs", "continue_final_message", "add_generation_prompt"}
    assert chats == (ChatRequest.model_fields.keys() | REFUSALS.keys()) - ours


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"colour": 1}, "colour"),
        ({"mxspec": {"colour": 1}}, "mxspec.colour"),
        ({"mxspec": {"k": 99}}, "mxspec.k"),
        ({"mxspec": {"k": "many"}}, "mxspec.k"),
        ({"mxspec": {"k": True}}, "mxspec.k"),
        ({"mxspec": {"drafter": "oracle"}}, "mxspec.drafter"),
        ({"mxspec": {"verifier": "none"}, "temperature": 1}, "mxspec.verifier"),
        ({"mxspec": {"top_k": -1}}, "mxspec.top_k"),
        ({"mxspec": {"top_k": 5}}, "mxspec.top_k"),  # it does nothing at temperature 0
        ({"mxspec": {"regex": "("}}, "mxspec.regex"),
        ({"mxspec": {"regex": "a", "lark": "b"}}, "mxspec.regex"),
        ({"mxspec": {"regex": "a"}, "stop": "b"}, "stop"),
        ({"mxspec": {"trace": True}}, "mxspec.trace"),
        ({"mxspec": 1}, "mxspec"),
        ({"mxspec": {"beams": 9}}, "mxspec.beams"),  # the engine has 8 slots
        ({"mxspec": {"beams": 2}, "temperature": 1}, "mxspec.beams"),
        ({"mxspec": {"beams": 2}, "n": 3}, "n"),
        ({"mxspec": {"beams": 2}, "best_of": 2}, "best_of"),
        ({"mxspec": {"beams": 2, "lenience": 0.5}}, "mxspec.lenience"),
        ({"mxspec": {"beams": 2, "drafter": "suffix"}}, "mxspec.drafter"),
        ({"mxspec": {"beams": 2, "early_stopping": "soon"}}, "mxspec.early_stopping"),
        ({"mxspec": {"length_penalty": 2}}, "mxspec.length_penalty"),
        ({"mxspec": {"min_new_tokens": 9}}, "mxspec.min_new_tokens"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["x"] * 4}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt"),
        ({"prompt": [300]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": "x" * 97}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "4"}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 2, "temperature": 1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 5}, "n"),
        ({"best_of": 5, "temperature": 1}, "best_of"),
        ({"best_of": 2, "temperature": 1, "stream": True}, "best_of"),
        ({"best_of": 2, "n": 3, "temperature": 1}, "best_of"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop.0"),
        ({"stop": 1}, "stop"),
        ({"presence_penalty": 1000}, "presence_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 1e9}}, "logit_bias"),
        ({"logprobs": 21}, "logprobs"),
        ({"echo": 1}, "echo"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"colour": 1}}, "stream_options.colour"),
        ({"model": 5}, "model"),
    ],
)
def test_a_wrong_completion_is_refused_by_its_field(server: Server, fields: dict[str, Any], param: str) -> None:
    answer = server.post("/v1/completions", WHOLE | fields)
    error = answer.json["error"]
    assert (answer.status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["message"].startswith(param)
    assert "\n" not in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "poet", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"content": "x"}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x" * 200}]}, "messages"),
        ({"max_completion_tokens": 4}, "max_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "colour"}}}},
            "response_format",
        ),
        (  # which fails when it is first used
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#"}}}},
            "response_format",
        ),
        ({"response_format": {"type": "json_object"}, "mxspec": {"regex": "a"}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "tools": [TOOL]}, "response_format"),
        ({"tools": [{"type": "web"}]}, "tools.0.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "never"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "required", "stop": "x"}, "stop"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"continue_final_message": True}, "messages"),  # which is the user's
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"stop_token_ids": [300]}, "stop_token_ids"),
        ({"min_tokens": 9}, "min_tokens"),
        ({"top_k": -2, "temperature": 1}, "top_k"),
        ({"min_p": 0.1, "temperature": 1, "mxspec": {"min_p": 0.2}}, "min_p"),
        ({"store": True}, "store"),
        ({"audio": {}}, "audio"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"functions": [{}]}, "functions"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_a_wrong_chat_is_refused_by_its_field(server: Server, fields: dict[str, Any], param: str) -> None:
    answer = server.post("/v1/chat/completions", CHAT | fields)
    error = answer.json["error"]
    assert (answer.status, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert error["message"].startswith(param)


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "modalities": ["text"]},
        {"tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": False},
        {"tool_choice": "auto", "top_logprobs": 0, "seed": -1, "top_k": -1, "min_p": 0.1, "n": 2},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
                {
                    "role": "assistant",
                    "content": "b",
                    "provider_specific_fields": {"refusal": None},
                    "reasoning_content": "so",
                    "refusal": None,
                    "audio": None,
                    "annotations": [],
                },
                {"role": "user", "content": "c", "colour": 1},
            ]
        },
        {"stop": None, "mxspec": {"k": None}, "seed": None, "response_format": {"type": "text"}},
        {"top_p": 0.5, "logit_bias": {"7": -100}, "seed": 1234},
        {
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
            ]
        },
    ],
)
def test_settings_without_effect_are_accepted(server: Server, fields: dict[str, Any]) -> None:
    answer = server.post("/v1/chat/completions", CHAT | fields)
    assert answer.status == 200, answer.body
    given = {"user", "metadata", "store", "service_tier", "modalities"} & fields.keys()
    assert answer.headers.get("x-ignored-fields", "") == ", ".join(sorted(given))


WRONG = [None, True, 1.5, "\ud800", [], [None], [[1, None]], {}, {"a": [True]}]
PYTHON = re.compile(r"\b(None|True|False|dict\w*|instance|Input|str|int|codec|NoneType)\b|object has no|[\[{]'")


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", lambda wrong: {"prompt": wrong}),
        ("/v1/completions", lambda wrong: {"prompt": "x", "seed": wrong, "temperature": 1}),
        ("/v1/completions", lambda wrong: {"prompt": "x", "logit_bias": wrong}),
        ("/v1/completions", lambda wrong: {"prompt": "x", "mxspec": {"regex": wrong}}),
        ("/v1/completions", lambda wrong: {"prompt": "x", "stream_options": wrong}),
        ("/v1/completions", lambda wrong: json.dumps(wrong).encode()),
        ("/v1/chat/completions", lambda wrong: CHAT | {"tools": [wrong]}),
        ("/v1/chat/completions", lambda wrong: CHAT | {"messages": [{"role": wrong}]}),
        ("/v1/chat/completions", lambda wrong: CHAT | {"messages": [{"role": "user", "content": wrong}]}),
        ("/v1/chat/completions", lambda wrong: CHAT | {"messages": [{"role": "assistant", "tool_calls": [wrong]}]}),
        ("/v1/responses", lambda wrong: {"input": [{"type": wrong}]}),
        ("/v1/responses", lambda wrong: {"input": "x", "text": {"format": wrong}}),
        ("/api/chat", lambda wrong: {"model": "tiny", "messages": wrong}),
        ("/detokenize", lambda wrong: {"tokens": wrong}),
    ],
)
def test_mistakes_are_said_in_the_words_of_json(server: Server, path: str, asked: Callable[[Any], Any]) -> None:
    for wrong in WRONG:
        answer = server.post(path, asked(wrong))
        if answer.status != 200:
            error = answer.json["error"]
            message = error if isinstance(error, str) else error["message"]
            assert answer.status == 400
            assert not PYTHON.search(message), (wrong, message)


@pytest.mark.parametrize("text", ["x" * 97, "x" * 9000])
@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("v1/completions", "prompt"),
        ("v1/chat/completions", "messages"),
        ("tokenize", "prompt"),
        ("tokenize", "messages"),
    ],
)
def test_a_prompt_beyond_the_context_says_so_in_its_code(server: Server, path: str, field: str, text: str) -> None:
    messages = [{"role": "user", "content": text}]
    answer = server.post(f"/{path}", {field: messages if field == "messages" else text})
    if path == "tokenize" and len(text) < 100:
        assert answer.json["count"] >= 97  # few enough to be counted
        return
    error = answer.json["error"]
    assert (answer.status, error["param"], error["code"]) == (400, field, "context_length_exceeded")
    assert ("bytes" in error["message"]) == (len(text) > 100)


def test_a_chat_beyond_the_context_is_not_rendered(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatTemplate, "render", lambda *_, **__: pytest.fail("rendered"))
    parts = [{"type": "text", "text": "x" * 3000}] * 3
    with Engine(bundle) as engine, pytest.raises(ContextLengthError, match=r"^prompt: got 9,0\d\d bytes, expected at "):
        engine.generate(messages=[{"role": "user", "content": parts}])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"prompt": "x", "prompt": "y"}', "twice"),
        (b'{"prompt": "x", "temperature": NaN}', "NaN"),
        (b"[]", "expected an object"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 9000, "not valid JSON"),
        (b'{"a":' * 600 + b"1" + b"}" * 600, "nested deeper"),
    ],
)
def test_a_body_that_is_no_request(server: Server, body: bytes, message: str) -> None:
    answer = server.post("/v1/completions", body)
    assert answer.status == 400
    assert message in answer.json["error"]["message"]


def test_too_long_bodies_are_refused_with_and_without_a_length(server: Server) -> None:
    body = json.dumps(WHOLE | {"prompt": "x" * 20_000}).encode()
    assert server.post("/v1/completions", body).status == 413
    with socket.create_connection((server.host, server.port), 30) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for start in range(0, 11_000, 1000):  # just beyond the limit: what is sent and not read resets the connection
            piece = body[start : start + 1000]
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_other_routes_methods_types_and_names(server: Server) -> None:
    assert server.request("GET", "/v1/nothing").status == 404
    assert "error" in server.request("GET", "/v1/nothing").json
    wrong = server.request("GET", "/v1/completions")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    text = server.request("POST", "/v1/completions", json.dumps(WHOLE).encode(), {"Content-Type": "text/plain"})
    assert text.status == 415
    stranger = server.request("GET", "/v1/models", headers={"Host": "evil.example"})
    assert stranger.status == 403
    for name in ("[::1].evil.com", "[::1]evil.com", "127.0.0.1.evil.com:80", "", "a:b:c"):
        assert server.request("GET", "/v1/models", headers={"Host": name}).status == 403
    for name in (f"localhost:{server.port}", "127.0.0.1", "[::1]:80"):
        assert server.request("GET", "/health", headers={"Host": name}).status == 200
    assert "access-control-allow-origin" not in server.request("GET", "/health", headers={"Origin": "http://a"}).headers
