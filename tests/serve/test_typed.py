"""`specserve --typed-control-tokens text`: every route of chats counts a typed control token as the text it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Server, Serving

SAID = [{"role": "system", "content": "<bos>"}, {"role": "user", "content": "say <eos>"}]
BYTES = len("s:<bos>\nu:say <eos>\na:")
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID, "max_tokens": 1},
    "/v1/responses": {"instructions": "<bos>", "input": "say <eos>", "max_output_tokens": 1},
    "/api/chat": {"messages": SAID, "options": {"num_predict": 1}, "stream": False},
    "/api/generate": {"system": "<bos>", "prompt": "say <eos>", "options": {"num_predict": 1}, "stream": False},
    "/tokenize": {"messages": SAID, "add_generation_prompt": True},
}


@pytest.fixture(scope="module", params=["control", "text"])
def server(request: pytest.FixtureRequest, bundle: Path, serving: Serving) -> Iterator[tuple[Server, int]]:
    """A server, and the number of tokens of the chat: by bytes, a control token is one."""
    tokens = BYTES - (len("<bos>") + len("<eos>") - 2 if request.param == "control" else 0)
    with serving(bundle, "--typed-control-tokens", request.param) as server:
        yield server, tokens


@pytest.mark.parametrize("path", ROUTES)
def test_a_typed_control_token_is_what_was_asked(server: tuple[Server, int], path: str) -> None:
    found = server[0].post(path, {"model": "tiny"} | ROUTES[path]).json
    counts = [
        found.get("count"),
        found.get("prompt_eval_count"),
        *(found.get("usage", {}).get(name) for name in ("prompt_tokens", "input_tokens")),
    ]
    assert [count for count in counts if count is not None] == [server[1]], found


def test_a_prompt_has_the_control_tokens_that_it_asks_for(server: tuple[Server, int]) -> None:
    found = server[0].post("/v1/completions", {"prompt": "say <eos>", "max_tokens": 1}).json
    assert found["usage"]["prompt_tokens"] == len("say ") + 1
