"""A served pair of models with encoders: prompts are sources, and what makes no sense for them is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mxspec import Engine

from .conftest import Serving


@pytest.fixture(scope="module")
def server(serving: Serving, t5_bundle: Path) -> Iterator[Any]:
    with serving(t5_bundle) as server:
        yield server


def test_a_completion_is_what_the_engine_writes_of_the_source(server: Any, t5_bundle: Path) -> None:
    prompts = ["hello there", "x", "hello there"]
    body = {"prompt": prompts, "max_tokens": 12, "temperature": 0, "logprobs": 0}
    answer = server.post("/v1/completions", body)
    assert answer.status == 200, answer.body
    found = answer.json
    with Engine(t5_bundle) as engine:
        texts = [engine.generate(prompt, max_new_tokens=12).result() for prompt in prompts]
        read = sum(len(engine.encode(prompt)) + 1 for prompt in prompts)  # and what the decoder begins with
    assert [choice["text"] for choice in found["choices"]] == [text.text for text in texts]
    assert found["usage"]["prompt_tokens"] == read


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/completions", {"prompt": "x", "echo": True}, "echo: is not supported by model pair: an encoder reads"),
        ("/v1/completions", {"prompt": "x" * 48}, "got 49 tokens, expected 1 to 48, the encoder's context length"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "model pair has no chat template"),
    ],
)
def test_meaningless_combinations_are_refused(server: Any, path: str, body: dict[str, Any], says: str) -> None:
    answer = server.post(path, body)
    assert answer.status == 400
    assert says in answer.json["error"]["message"]


def test_the_list_of_models_says_how_long_a_source_may_be(server: Any) -> None:
    (model,) = [one for one in server.request("GET", "/v1/models").json["data"] if one["id"] == "pair"]
    own = model["mxspec"]
    assert (own["source_length"], own["context_length"], own["chat"]) == (48, 96, False)
