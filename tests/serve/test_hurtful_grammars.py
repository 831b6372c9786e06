"""Grammars that would end the process, or hold it up, beside texts that are written: each is a 400 of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from .conftest import Raw, Server, Serving

CHAIN = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(2500)}
NESTED = {f"a{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(1500)}
LARK = "\n".join(["start: r0", *(f'r{i}: r{i + 1} "x"' for i in range(5000)), 'r5000: "a"'])
SLOW = {"type": "integer", "multipleOf": 999983}
TEXT: dict[str, Any] = {"prompt": "x", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def server(bundle: Path, serving: Serving) -> Iterator[Server]:
    with serving(bundle, "--time-limit", "30") as server:
        yield server


def by_schema(schema: dict[str, Any]) -> dict[str, Any]:
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 8, "response_format": wanted}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", by_schema({"$ref": "#/$defs/a0", "$defs": {**CHAIN, "a2500": {}}}), "response_format"),
        ("chat/completions", by_schema({"$ref": "#/$defs/a0", "$defs": {**NESTED, "a1500": {}}}), "response_format"),
        ("chat/completions", by_schema(SLOW), "response_format"),
        ("completions", TEXT | {"mxspec": {"lark": LARK}}, "mxspec.lark"),
    ],
)
def test_it_is_refused_by_its_field(server: Server, path: str, body: dict[str, Any], param: str) -> None:
    answer = server.post(f"/v1/{path}", body)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert server.post("/v1/completions", TEXT | {"mxspec": {"regex": "ab+"}}).status == 200


def test_who_leaves_is_not_worked_for(server: Server) -> None:
    """Four that ask for slow grammars and go away leave room for others, and no process."""
    bodies = [by_schema(SLOW | {"minimum": number}) for number in range(4)]
    clients = [Raw(server, body, path="/v1/chat/completions") for body in bodies]
    good = TEXT | {"mxspec": {"regex": "beside+"}}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, "/v1/completions", good)
        for client in clients:
            client.socket.close()
        assert answer.result().status == 200
    while server.metric("mxspec:num_requests_waiting"):
        time.sleep(0.01)


def test_a_process_that_somebody_ends_is_no_mistake_of_the_request(server: Server) -> None:
    """Nor is the verdict kept: the next request with this grammar is tried again."""
    server.post("/v1/completions", TEXT | {"mxspec": {"regex": "which starts the process"}})
    body = by_schema({"enum": [f"value {i}" for i in range(20_000)]})
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, "/v1/chat/completions", body)
        ended = 0
        while not asked.done():
            for process in grandchildren(server.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    ended += 1
    answer = asked.result()
    assert (answer.status, answer.json["error"]["code"], answer.headers["retry-after"]) == (503, "unavailable", "1")
    assert ended
    assert server.post("/v1/chat/completions", body).status == 200


def grandchildren(process: int) -> list[int]:
    return [of_child for child in children(process) for of_child in children(child)]


def children(process: int) -> list[int]:
    with suppress(FileNotFoundError):
        tasks = Path(f"/proc/{process}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return []
