"""How a server begins and ends: loading, what cannot be served, the port, and signals."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from mxspec.serve.commands.specserve import specserve

from .conftest import LONG, PATIENCE, Answer, Server, Serving

COMMAND = [sys.executable, "-m", "mxspec.serve.start"]


def fails(*arguments: object) -> str:
    """The one line that specserve ends with, before it serves."""
    done = CliRunner().invoke(specserve, list(map(str, arguments)))
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def begin(server: Server) -> tuple[threading.Thread, list[Answer]]:
    """A thread that reads a long text, which the server has begun, and where the answer will be."""
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", LONG | {"stream": True})))
    thread.start()
    while server.metric("mxspec:num_requests_running") == 0:
        pass
    return thread, answers


def test_a_bundle_that_cannot_be_served_is_one_line(tmp_path: Path, bundle: Path) -> None:
    assert "no such directory" in fails(tmp_path / "none")
    assert "BUNDLE" in fails()
    copy = tmp_path / bundle.name
    shutil.copytree(bundle, copy)
    assert "'tiny'" in fails(bundle, copy)
    keys = tmp_path / "keys"
    keys.write_text("short\n")
    line = fails(bundle, "--api-key-file", keys)
    assert "key 1" in line
    assert "short" not in line
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "in use" in fails(bundle, "--port", taken.getsockname()[1])


def test_a_bundle_that_cannot_be_loaded_ends_the_server(tmp_path: Path, bundle: Path) -> None:
    copy = tmp_path / "broken.bundle"
    shutil.copytree(bundle, copy)
    graph = copy / "target.onnx"
    graph.write_bytes(bytes(graph.stat().st_size))
    done = subprocess.run([*COMMAND, str(copy), "--port", "0"], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (1, "")
    lines = [line for line in done.stderr.splitlines() if not line.startswith("loading")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    assert "broken.bundle" in lines[0]


def test_while_models_are_loaded_it_says_so(demo: Path, serving: Serving) -> None:
    with serving(demo, ready=False) as server:
        first = server.request("GET", "/health")
        if first.status == 503:  # it is faster than the question on a fast machine
            assert first.json == {"status": "loading"}
            refused = server.post("/v1/completions", LONG)
            assert refused.status in (200, 503)
        server.wait_ready()
        assert server.request("GET", "/health").json == {"status": "ok"}
        assert server.stop() == 0


@pytest.mark.parametrize(("grace", "said"), [("20", "1 requests finished, 0 cut off"), ("0", "0 requests finished, 1")])
def test_a_signal_lets_texts_end_or_cuts_them_off(demo: Path, serving: Serving, grace: str, said: str) -> None:
    with serving(demo, "--grace", grace) as server:
        thread, answers = begin(server)
        assert server.stop() == 0
        thread.join()
        assert said in server.wait_for("shutting down")
    (answer,) = answers
    assert answer.status == 200
    if grace == "0":
        assert answer.events[-1]["error"]["code"] == "draining"
    else:
        assert answer.events[-1] == "[DONE]"
    with pytest.raises(OSError):  # noqa: PT011 - refused
        server.request("GET", "/health")


def test_while_texts_end_new_requests_are_refused(demo: Path, serving: Serving) -> None:
    with serving(demo) as server:
        thread, answers = begin(server)
        server.process.terminate()
        while server.request("GET", "/health").json != {"status": "draining"}:
            pass
        refused = server.post("/v1/completions", LONG)
        assert (refused.status, refused.json["error"]["code"]) == (503, "draining")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        assert not answers
        thread.join()
        assert answers[0].events[-1] == "[DONE]"
        assert "1 requests finished, 0 cut off" in server.wait_for("shutting down")


def test_a_request_that_takes_too_long_ends(demo: Path, serving: Serving) -> None:
    with serving(demo, "--time-limit", "0.2") as server:
        whole = server.post("/v1/completions", LONG)
        assert (whole.status, whole.json["error"]["code"]) == (504, "timeout")
        streamed = server.post("/v1/completions", LONG | {"stream": True})
        assert streamed.status == 200
        assert streamed.events[-1]["error"]["code"] == "timeout"
        assert server.metric("mxspec:request_success_total", finished_reason="abort") == 2


def test_what_slots_hold_outlives_the_server_by_key(demo: Path, serving: Serving, tmp_path: Path) -> None:
    keys, kept = tmp_path / "keys", tmp_path / "kept"
    keys.write_text("first-secret-key\nsecond-secret-key\n")
    prompt = "def read_lines(path):\n" * 20
    options = ("--prompt-cache", kept, "--api-key-file", keys)
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0}

    def reused(server: Server, key: str) -> int:
        answer = server.post("/v1/completions", body, authorization=f"Bearer {key}")
        assert answer.status == 200
        return int(answer.json["usage"]["prompt_tokens_details"]["cached_tokens"])

    with serving(demo, *options) as server:
        assert reused(server, "first-secret-key") == 0
        assert server.stop() == 0
    files = list(kept.rglob("*.promptcache"))
    assert len(files) == 1
    assert {path.stat().st_mode & 0o077 for path in (kept, files[0].parent, kept / "salt")} == {0}
    assert not any(b"secret-key" in path.read_bytes() for path in kept.rglob("*") if path.is_file())
    with serving(demo, *options) as server:
        assert reused(server, "second-secret-key") == 0
        assert reused(server, "first-secret-key") > 100
        assert server.stop() == 0
    for path in kept.rglob("*.promptcache"):
        path.write_bytes(b"damaged")
    with serving(demo, *options) as server:
        assert reused(server, "first-secret-key") == 0  # with a warning
        assert "prompt cache" in server.wait_for("warning")
        assert server.stop() == 0


def test_an_idle_server_gives_the_memory_of_its_caches_back(demo: Path, serving: Serving) -> None:
    with serving(demo, "--idle-minutes", "0.02") as server:
        body = {"prompt": "def read_lines(path):\n" * 10, "max_tokens": 4, "temperature": 0}
        first = server.post("/v1/completions", body)
        assert server.metric("mxspec:cache_bytes") > 1 << 16
        deadline = time.monotonic() + PATIENCE
        while server.metric("mxspec:cache_bytes"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        again = server.post("/v1/completions", body)
        assert again.json["choices"] == first.json["choices"]
        assert again.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert server.stop() == 0


def test_it_says_when_it_is_ready_and_what_ctrl_c_waits_for(demo: Path, serving: Serving) -> None:
    with serving(demo, "--host", "0.0.0.0") as server:
        first, second, third = (server.wait_for(said) for said in ("warning: ", "loading", "ready: "))
        assert "whoever reaches 0.0.0.0 may send requests" in first
        assert second.rpartition("http")[2] == third.rpartition("http")[2]
        thread, answers = begin(server)
        server.process.send_signal(signal.SIGINT)
        assert "1 requests may finish within 30 s; Ctrl-C again ends at once" in server.wait_for("draining: ")
        server.process.send_signal(signal.SIGINT)
        thread.join()
        assert answers[0].events[-1] != "[DONE]"
        assert "0 requests finished, 1 cut off" in server.wait_for("cut off")
