"""Clients that want answers of a form, by which a model has to mean something: each is skipped where it is missing."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from mxspec.evaluate.bench.serve.server import specserve
from mxspec.runtime.engine import Engine

MODULES = Path(__file__).resolve().parents[2] / ".venv" / "node" / "node_modules"
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def url(bundle: Path) -> Iterator[str]:
    with specserve(bundle) as server:
        yield f"{server.address.url}/v1"


class City(BaseModel):
    """A city."""

    model_config = ConfigDict(extra="forbid")

    city: str = Field(max_length=20)
    country: Literal["France", "Spain"]


@pytest.mark.filterwarnings("default")  # of its own code
@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"])
def test_instructor(url: str, mode: str) -> None:
    instructor = pytest.importorskip("instructor")
    with openai.OpenAI(base_url=url, api_key="none") as plain:
        found = instructor.from_openai(plain, mode=instructor.Mode[mode]).chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": QUESTION}],
            response_model=City,
            max_retries=0,
            temperature=0,
            max_tokens=100,
        )
    assert (found.city, found.country) == ("Paris", "France")


@pytest.mark.skipif(
    shutil.which("node") is None or not (MODULES / "ai").is_dir(),
    reason="needs node, and Vercel's ai in .venv/node (scripts/test fetches it where there is npm)",
)
def test_vercel(url: str, bundle: Path) -> None:
    with Engine(bundle) as engine:
        asked = [{"role": "user", "content": QUESTION}]
        text = engine.generate(messages=asked, temperature=0, max_new_tokens=60).result().text
    command = ["node", str(Path(__file__).with_name("vercel.mjs")), url, str(MODULES), "smollm2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["whole"] == found["streamed"] == text
    assert found["reason"] == "stop"
    assert 0 < found["tokens"] < 60
    assert found["object"] == {"city": "Paris"}
    assert found["calls"][0] == ["weather", "Paris"]
    assert found["results"][0] == "sun in Paris"
