"""/v1/responses by the openai package, and Ollama's routes: the texts that chats have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import SAID, SCHEMA, Server, Serving

TOOL = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}


@pytest.fixture(scope="module")
def server(bundle: Path, serving: Serving) -> Iterator[Server]:
    with serving(bundle, "--alias", "gpt-4") as server:
        yield server


def test_a_response_has_the_text_of_the_chat(client: Any, text: str) -> None:
    response = client.responses.create(model="tiny", input="say so", temperature=0, max_output_tokens=12, store=False)
    assert response.output_text == text
    assert (response.status, response.incomplete_details and response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert response.usage.output_tokens == 12
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "say so"}]}, {"type": "reasoning", "id": "r"}]
    again = client.responses.create(model="gpt-4", input=parts, temperature=0, max_output_tokens=12)
    assert again.output_text == text


def test_a_streamed_response_says_what_happens(client: Any, text: str) -> None:
    with client.responses.create(
        model="tiny", input="say so", temperature=0, max_output_tokens=12, stream=True
    ) as stream:
        events = list(stream)
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text
    assert events[-1].response.output_text == text


@pytest.mark.parametrize("streamed", [False, True])
def test_a_response_calls_a_function(client: Any, streamed: bool) -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "input": "x",
        "temperature": 0,
        "tools": [TOOL],
        "tool_choice": "required",
    }
    if streamed:
        with client.responses.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            response: Any = stream.get_final_response()
        assert "response.function_call_arguments.done" in kinds
    else:
        response = client.responses.create(**asked, parallel_tool_calls=False)
    call = response.output[0]
    assert (call.type, call.name, {*json.loads(call.arguments)}) == ("function_call", "f", {"on"})


def test_a_second_turn_has_calls_and_their_results(server: Server) -> None:
    call = {"type": "function_call", "id": "fc", "call_id": "1", "name": "f", "arguments": "{}", "status": "completed"}
    said = [{"role": "user", "content": "x"}, call, {"type": "function_call_output", "call_id": "1", "output": "7"}]
    answer = server.post("/v1/responses", {"input": said, "max_output_tokens": 1, "include": []})
    assert answer.status == 200, answer.body
    assert answer.headers["x-ignored-fields"] == "include"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"colour": 1}, "colour"),
        ({"input": "x" * 9000}, "input"),
        ({"input": [{"content": "x"}]}, "input.0.role"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"$ref": "#"}}}}, "text"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
    ],
)
def test_a_wrong_response_is_refused_by_its_field(server: Server, fields: dict[str, Any], param: str) -> None:
    answer = server.post("/v1/responses", {"input": "x"} | fields)
    error = answer.json["error"]
    assert (answer.status, error["param"]) == (400, param), error


def lines(body: bytes) -> list[Any]:
    return [json.loads(line) for line in body.splitlines()]


def test_ollamas_chat_has_the_same_text(server: Server, text: str) -> None:
    asked = {"model": "tiny:latest", "messages": SAID, "options": {"temperature": 0, "num_predict": 12, "num_ctx": 9}}
    whole = server.post("/api/chat", asked | {"stream": False})
    assert whole.json["message"] == {"role": "assistant", "content": text}
    assert (whole.json["done"], whole.json["done_reason"], whole.json["eval_count"]) == (True, "length", 12)
    assert whole.headers["x-ignored-fields"] == "options.num_ctx"
    streamed = server.post("/api/chat", asked)
    assert streamed.headers["content-type"] == "application/x-ndjson"
    found = lines(streamed.body)
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    assert "".join(line["message"]["content"] for line in found) == text
    assert found[-1]["eval_count"] == 12


def test_ollamas_texts_and_models(server: Server, text: str) -> None:
    asked = {"model": "tiny", "prompt": "say so", "options": {"temperature": 0, "num_predict": 12}}
    assert "".join(line["response"] for line in lines(server.post("/api/generate", asked).body)) == text
    raw = server.post("/api/generate", asked | {"raw": True, "stream": False}).json["response"]
    body = {"prompt": "say so", "temperature": 0, "max_tokens": 12}
    assert raw == server.post("/v1/completions", body).json["choices"][0]["text"]
    (model,) = server.request("GET", "/api/tags").json["models"]
    assert model["name"] == "tiny:latest"
    wrong = server.post("/api/chat", {"model": "tiny", "messages": SAID, "options": {"colour": 1}})
    assert (wrong.status, wrong.json["error"]["param"]) == (400, "options.colour")


def test_ollamas_tools(server: Server) -> None:
    function = {"name": "f", "parameters": SCHEMA, "strict": True}
    called = [{"function": {"name": "f", "arguments": {"city": "x"}}}]
    said = [*SAID, {"role": "assistant", "content": "", "tool_calls": called}, {"role": "tool", "content": "7"}]
    tools = [{"type": "function", "function": function}]
    answer = server.post(
        "/api/chat", {"model": "tiny", "messages": said, "tools": tools, "options": {"num_predict": 1}}
    )
    assert lines(answer.body)[-1]["done"]


def test_ollamas_clients_need_not_say_json_but_pages_do(server: Server) -> None:
    body = json.dumps({"model": "tiny", "prompt": "x", "options": {"num_predict": 1}}).encode()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert server.post("/api/generate", body, **form).status == 200
    assert server.post("/api/generate", body, **form, Origin="https://a.example").status == 415
    assert server.post("/v1/completions", body, **form).status == 415
