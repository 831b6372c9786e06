"""A server with small limits, and clients that wait, stall, go away, and bring the wrong key."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mxspec.serve.http.half_closed import INTERIM

from .conftest import LONG, PATIENCE, Answer, Raw, Server, Serving

KEYS = ("first-secret-key", "second-secret-key")
STALL = 1.0
SHORT: dict[str, Any] = {"prompt": "def ", "max_tokens": 2, "temperature": 0}


@pytest.fixture(scope="module")
def server(demo: Path, serving: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("# ours\n\n" + "\n".join(KEYS) + "\n")
    limits = ("--slots", "2", "--queue", "1", "--stall", str(STALL))
    with serving(demo, *limits, "--api-key-file", keys, "--allow-origin", "https://a.example") as server:
        yield server


def bearer(key: str = KEYS[0]) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def ask(server: Server, body: dict[str, Any], key: str = KEYS[0]) -> Answer:
    return server.request("POST", "/v1/completions", body, bearer(key))


def running(server: Server) -> int:
    text = server.request("GET", "/metrics", headers=bearer()).body.decode()
    lines = [line for line in text.splitlines() if line.startswith("mxspec:num_requests_")]
    return int(sum(float(line.split()[-1]) for line in lines))


def wait_until(server: Server, holds: Callable[[int], bool]) -> float:
    """Seconds until the number of texts that run and wait is such."""
    began = time.monotonic()
    while not holds(running(server)):
        assert time.monotonic() - began < PATIENCE, server.lines
        time.sleep(0.005)
    return time.monotonic() - began


def held_by(server: Server, client: socket.socket) -> bool:
    """Whether the server still holds its end of a connection, by the system's table of them."""
    ends = f":{server.port:04X} ", f":{client.getsockname()[1]:04X} "
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(f"{row[1]} ".endswith(ends[0]) and f"{row[2]} ".endswith(ends[1]) for row in rows)


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("streamed", [True, False])
def test_who_goes_away_gives_the_slot_back(server: Server, streamed: bool) -> None:
    wait_until(server, lambda texts: texts == 0)
    with Raw(server, LONG | {"stream": streamed}, headers=bearer()) as client:
        if streamed:
            client.recv(1)
        wait_until(server, lambda texts: texts == 1)
    took = wait_until(server, lambda texts: texts == 0)
    assert took < 0.5  # the text takes more than a second
    assert any(entry.get("cut") == "disconnected" for entry in server.log())


@pytest.mark.parametrize("streamed", [True, False])
def test_who_only_ends_sending_gets_the_whole_answer(server: Server, streamed: bool) -> None:
    body = LONG | {"stream": streamed, "max_tokens": 300}
    with Raw(server, body, headers=bearer()) as client:
        client.shutdown(socket.SHUT_WR)
        found = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert found.removeprefix(INTERIM).startswith(b"HTTP/1.1 200 ")
    assert (b"[DONE]" if streamed else b'"completion_tokens":300') in found


def test_who_ends_sending_within_a_body_is_dropped(server: Server) -> None:
    with Raw(server, SHORT, headers=bearer() | {"Content-Length": "9999"}) as client:
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""


def test_beyond_the_queue_the_answer_is_later(server: Server) -> None:
    wait_until(server, lambda texts: texts == 0)
    with ThreadPoolExecutor(3) as pool:
        busy = [pool.submit(ask, server, LONG | {"max_tokens": 300}) for _ in range(3)]
        wait_until(server, lambda texts: texts == 3)
        answer = ask(server, SHORT)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.json["error"]["code"] == "queue_full"
        assert [each.result().status for each in busy] == [200] * 3
    assert ask(server, SHORT).status == 200
    assert ask(server, SHORT | {"prompt": ["a"] * 4}).json["error"]["param"] == "n"  # which never fits


def test_a_client_that_reads_nothing_is_dropped(server: Server) -> None:
    wait_until(server, lambda texts: texts == 0)
    with Raw(server, LONG | {"stream": True, "logprobs": 20}, receive_bytes=2048, headers=bearer()) as client:
        wait_until(server, lambda texts: texts == 1)
        assert held_by(server, client)
        wait_for(lambda: any(entry.get("cut") == "stalled" for entry in server.log()))
        assert wait_until(server, lambda texts: texts == 0) < 0.5
        wait_for(lambda: not held_by(server, client))  # though nobody closed it there


def test_a_stalled_request_body_times_out(server: Server) -> None:
    with socket.create_connection((server.host, server.port), PATIENCE) as client:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEYS[0]}\r\n"
        client.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")


def test_only_who_has_a_key_is_answered(server: Server) -> None:
    assert server.request("GET", "/health").status == 200
    for path in ("/v1/models", "/metrics", "/tokenizer_info", "/nothing"):
        answer = server.request("GET", path)
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json["error"]["type"] == "authentication_error"
    for key in ("", "wrong", KEYS[0][:-1], KEYS[0] + "x", "# ours"):
        assert ask(server, SHORT, key).status == 401
    for key in KEYS:
        assert ask(server, SHORT, key).status == 200
    basic = {"Authorization": f"Basic {KEYS[0]}"}
    assert server.request("GET", "/v1/models", headers=basic).status == 401
    written = "\n".join(server.lines)
    assert not any(key in written for key in KEYS)
    assert "def " not in written
    assert {entry["key"] for entry in server.log()} >= {1, 2, None}


def test_nothing_that_was_read_for_one_key_serves_another(server: Server) -> None:
    body = SHORT | {"prompt": "import os\nimport sys\n\n\ndef unusual(name):\n    return "}

    def cached(key: str, **own: Any) -> int:
        found: int = ask(server, body | {"mxspec": own}, key).json["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    cached(KEYS[0])
    assert cached(KEYS[0]) > 5
    assert cached(KEYS[1]) == 0
    assert cached(KEYS[1]) > 5
    assert cached(KEYS[1], cache_key="mine") == 0


def test_only_pages_that_are_allowed_may_ask(server: Server) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    allowed = server.request("OPTIONS", "/v1/completions", headers={"Origin": "https://a.example", **asked})
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    other = server.request("OPTIONS", "/v1/completions", headers={"Origin": "https://b.example", **asked})
    assert "access-control-allow-origin" not in other.headers


def test_a_connection_serves_one_request_after_another(server: Server) -> None:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE)
    for body in (SHORT, SHORT | {"colour": 1}, SHORT | {"stream": True}, SHORT):
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {**bearer(), "Content-Type": "application/json"}
        )
        response = connection.getresponse()
        response.read()
        assert response.status == (400 if "colour" in body else 200)
    connection.close()
