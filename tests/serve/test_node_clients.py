"""openai-node, and curl's stream, against a server: the same texts as in this process."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from mxspec.runtime.engine import Engine

from .conftest import PATIENCE, SAID, Server

MODULES = Path(__file__).resolve().parents[2] / ".venv" / "node" / "node_modules"
UNSETTLED = 13  # node's own code: its client's fetch lost a promise, which it did once in some thousand runs


@pytest.mark.skipif(
    shutil.which("node") is None or not (MODULES / "openai").is_dir(),
    reason="needs node, and npm install --prefix .venv/node openai@^6 (scripts/test does it where there is npm)",
)
def test_openai_node_reads_the_same_texts(server: Server, engine: Engine) -> None:
    script = Path(__file__).with_name("client.mjs")
    command = ["node", str(script), f"{server.url}/v1", str(MODULES)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode != UNSETTLED:
            break
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    text = engine.generate(messages=SAID, temperature=0, max_new_tokens=20).result().text
    assert found["whole"] == found["streamed"] == found["helped"] == text
    assert found["usage"]["completion_tokens"] == found["wholeUsage"]["completion_tokens"] == 20
    assert found["usage"]["total_tokens"] == found["wholeUsage"]["total_tokens"]
    assert found["completion"] == engine.generate("a text", temperature=0, max_new_tokens=9).result().text
    assert found["left"] == 3
    assert found["refused"] == {"status": 400, "param": "store", "name": "BadRequestError"}
    assert found["models"] == ["tiny"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_shows_a_stream_event_by_event(server: Server, engine: Engine) -> None:
    body = json.dumps({"prompt": "a text", "max_tokens": 12, "temperature": 0, "stream": True})
    command = ["curl", "-sN", f"{server.url}/v1/completions", "-H", "Content-Type: application/json", "-d", body]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    events = done.stdout.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    texts = [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events[:-2]]
    assert "".join(texts) == engine.generate("a text", temperature=0, max_new_tokens=12).result().text
