"""What is asked of a server and what is made of its answer, with one that only knows a single answer."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from bench.llama_cpp.answers import Answer, Running, Server
from mxspec.formats.errors import MxspecError

TIMINGS = {"predicted_n": 3, "predicted_ms": 1500.0, "draft_n": 8, "draft_n_accepted": 5}


class Handler(BaseHTTPRequestHandler):
    asked: list[Any] = []  # noqa: RUF012  # of all requests

    def do_POST(self) -> None:
        self.asked.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        body = json.dumps({"tokens": [4, 5, 6], "timings": TIMINGS}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def running() -> Iterator[Running]:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Running(server.server_port)
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_answer_is_greedy_and_of_the_length_asked_for(running: Running) -> None:
    assert running.answer([1, 2], 3) == Answer((4, 5, 6), 1.5, 8, 5)
    path, body = Handler.asked[-1]
    assert path == "/completion"
    assert {k: body[k] for k in ("prompt", "n_predict", "temperature", "top_k", "ignore_eos", "cache_prompt")} == {
        "prompt": [1, 2],
        "n_predict": 3,
        "temperature": 0,
        "top_k": 1,
        "ignore_eos": True,
        "cache_prompt": False,
    }


def test_a_server_that_ends_is_one_line(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text(f"#!{sys.executable}\nimport sys\nprint('no such model')\nsys.exit(3)\n")
    program.chmod(0o755)
    server = Server(tmp_path, tmp_path / "m.gguf", 2, tmp_path / "log")
    with pytest.raises(MxspecError, match="llama-server ended with 3: no such model"), server.open():
        pass


def test_a_server_that_ends_within_an_answer_is_one_line() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(MxspecError, match=r"^llama-server: /completion failed: URLError"):
        Running(port).answer([1], 2)
