"""Clients that others write, as their examples use them; each is skipped unless it is installed (docs/testing.md)."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import SAID, Server

TOKENS = 12

pytestmark = pytest.mark.filterwarnings("default")  # of their own code


def test_litellm(server: Server, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would be fetched
    litellm = pytest.importorskip("litellm")
    settings: Any = {"model": "openai/tiny", "api_base": f"{server.url}/v1", "api_key": "none"}
    settings |= {"temperature": 0, "max_tokens": TOKENS}
    first = litellm.completion(messages=SAID, **settings)
    assert first.choices[0].message.content == text
    pieces = litellm.completion(messages=SAID, stream=True, **settings)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text
    turns = [*SAID, first.choices[0].message.model_dump(), {"role": "user", "content": "so"}]  # as read from us
    assert litellm.completion(messages=turns, **settings).choices[0].message.content


def test_langchain(server: Server, text: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    chat = langchain.ChatOpenAI(
        model="tiny", base_url=f"{server.url}/v1", api_key="none", temperature=0, max_tokens=TOKENS
    )
    assert chat.invoke("say so").content == text
    assert "".join(str(piece.content) for piece in chat.stream("say so")) == text


def test_ollama(server: Server, text: str) -> None:
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=server.url)
    options = {"temperature": 0, "num_predict": TOKENS}
    assert client.chat(model="tiny", messages=SAID, options=options).message.content == text
    pieces = client.chat(model="tiny", messages=SAID, options=options, stream=True)
    assert "".join(piece.message.content or "" for piece in pieces) == text
    assert "tiny" in str(client.list())
