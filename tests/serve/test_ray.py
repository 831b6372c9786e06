"""Jobs and the server on a real Ray of this machine: 2 CPUs, some 6 seconds to start, and 1.5 GB of memory."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mxspec.runtime.commands.specrun import specrun

from .conftest import with_chat_template

PATIENCE = 120.0  # seconds; a loaded machine is slow
COMMAND = [sys.executable, "-c", "from mxspec.serve.start import specbatch; specbatch()"]
CLUSTER = """
import json, sys
import ray
from ray import serve
from mxspec.serve.ray_app import build
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
print(ray.get_runtime_context().gcs_address, flush=True)
for line in sys.stdin:
    http, arguments = json.loads(line)
    serve.start(http_options=http)
    serve.run(build(arguments))
    print("ready", flush=True)
"""


class Cluster:
    """A Ray that outlives the commands that use it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.address = ""
        for _ in range(3):  # Ray gives its node 30 seconds to start, which on a loaded machine it may miss
            self.process = subprocess.Popen(
                [sys.executable, "-c", CLUSTER],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            if address := self.read_line():
                self.address = address
                return
            self.close()

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def serve(self, port: int, **arguments: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([{"host": "127.0.0.1", "port": port}, arguments]) + "\n")
        self.process.stdin.flush()
        assert self.read_line() == "ready"

    def workers(self, name: str) -> set[int]:
        """Processes of this Ray with such a title."""
        return {pid for pid in processes_named(name) if self.process.pid in ancestors(pid)}

    def close(self) -> None:
        try:
            self.process.communicate(timeout=PATIENCE)
        finally:
            self.process.kill()


def processes_named(name: str) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and (folder / "cmdline").read_text().startswith(name):
                yield int(folder.name)


def ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return
        yield pid


def wait_until(true: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """A Ray of its own: a folder with a short name, for its sockets are there, and a token that nobody else has."""
    folder = tempfile.mkdtemp(prefix="mxr", dir="/tmp")
    yield os.environ | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # not 15: beside other tests, Ray's workers would hardly run
        "RAY_prestart_worker_first_driver": "0",
    }
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(environment: dict[str, str]) -> Iterator[Cluster]:
    cluster = Cluster(environment)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def bundle(tiny_bundles: dict[str, Path]) -> str:
    return str(tiny_bundles["near"])


def start(environment: dict[str, str], *arguments: str | Path) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*COMMAND, *map(str, arguments)], env=environment, start_new_session=True, **pipes)


def write_rows(path: Path, count: int, *more: str) -> Path:
    rows = [
        {"key": f"k{i}", "prompt": "ab" * (1 + i % 9), "max_new_tokens": 20 + i % 40}
        | ({"temperature": 1.0, "seed": i} if i % 3 == 0 else {})
        for i in range(count)
    ]
    path.write_text("".join(f"{line}\n" for line in [*map(json.dumps, rows), *more]))
    return path


def read_answers(path: Path) -> list[dict[str, Any]]:
    files = [path] if path.is_file() else sorted(path.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines(keepends=True)]


def without_times(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What does not depend on who else was there, in the order of the input."""
    kept = ("line", "hash", "key", "text", "token_ids", "finish_reason", "seed", "error")
    return [
        {name: answer[name] for name in kept if name in answer}
        for answer in sorted(answers, key=lambda answer: int(answer["line"]))
    ]


def expected(bundle: str, rows: Path) -> list[dict[str, Any]]:
    """What specrun answers."""
    out = rows.with_suffix(".expected")
    CliRunner().invoke(specrun, [bundle, "--prompts", str(rows), "--out", str(out), "--k", "2"], catch_exceptions=False)
    return without_times(read_answers(out))


def test_rows_are_answered_as_specrun_answers_them(cluster: Cluster, bundle: str, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", 40, '{"promt": "x"}', '{"key": "n", "prompt": "ab", "n": 2}', "nonsense")
    arguments = [bundle, rows, tmp_path / "out", "--k", "2", "--replicas", "2", "--json", "--address", cluster.address]
    process = start(cluster.environment, *arguments)
    stdout, stderr = process.communicate()
    assert process.returncode == 1, stderr  # as specrun where a line is bad
    summary = json.loads(stdout)
    assert (summary["lines"], summary["answered"], sorted(summary["bad_lines"])) == (43, 40, [41, 42, 43])
    assert sorted(line.split(":")[0] for line in stderr.splitlines()) == ["error"] * 3
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["part-00000.jsonl"]
    answers = read_answers(tmp_path / "out")
    assert without_times(answers) == expected(bundle, rows)
    assert "unknown key 'promt'" in next(answer["error"] for answer in answers if answer["line"] == 41)


def test_a_killed_job_resumes_and_outlives_its_replicas(cluster: Cluster, bundle: str, tmp_path: Path) -> None:
    """Killed is the process that asks, then, in the run that goes on, every replica: nothing is lost or doubled."""
    rows, out = write_rows(tmp_path / "rows.jsonl", 400), tmp_path / "out"
    arguments = [bundle, rows, out, "--k", "2", "--cpus-per-replica", "1", "--address", cluster.address]

    def answered() -> int:
        return sum(file.read_bytes().count(b"\n") for file in out.glob("*.jsonl"))

    process = start(cluster.environment, *arguments)
    wait_until(lambda: answered() >= 40, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    first = answered()
    assert first < 400
    kept = read_answers(out) if (out / "_unfinished.jsonl").read_bytes().endswith(b"\n") else []
    wait_until(lambda: not cluster.workers("ray::MapWorker"))

    process = start(cluster.environment, *arguments)
    wait_until(lambda: answered() >= first + 40, process)
    killed = cluster.workers("ray::MapWorker")
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    last = answered()
    assert len(killed) == 2
    assert last < 400
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert stderr.splitlines()[-1].startswith("400 of 400 lines answered")
    answers = read_answers(out)
    assert len(answers) == 400
    assert without_times(answers) == expected(bundle, rows)
    assert answers[: len(kept)] == kept  # not asked again


def test_an_interrupt_is_one_line_and_leaves_what_was_written(
    environment: dict[str, str], bundle: str, tmp_path: Path
) -> None:
    """Here on a Ray that the command starts itself."""
    rows, out = write_rows(tmp_path / "rows.jsonl", 4000), tmp_path / "out"
    unfinished = out / "_unfinished.jsonl"

    def written() -> int:
        return unfinished.read_bytes().count(b"\n") if unfinished.exists() else 0

    for _ in range(3):  # as above
        process = start(environment, bundle, rows, out, "--replicas", "1", "--cpus-per-replica", "1")
        wait_until(lambda: written() > 20 or process.poll() is not None)  # noqa: B023  # called in this round alone
        if process.poll() is None:
            break
        assert "Ray: cannot be started" in process.communicate()[1]
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (130, "")
    assert stderr.endswith("interrupted: the same command goes on from here\n")
    assert stderr.count("\n") == 1, stderr
    assert [file.name for file in out.iterdir()] == ["part-00000.jsonl"]
    assert 20 < len(read_answers(out)) < 4000


def test_a_node_without_the_bundle_is_named(cluster: Cluster, bundle: str, tmp_path: Path) -> None:
    rows, gone = write_rows(tmp_path / "rows.jsonl", 1), shutil.copytree(bundle, tmp_path / "gone.bundle")
    code = f"""
import shutil
from mxspec.serve.jobs import cluster
require_head = cluster._require_head
cluster._require_head = lambda address: (shutil.rmtree("{gone}"), require_head(address))
{COMMAND[2]}
"""
    command = [sys.executable, "-c", code, gone, rows, tmp_path / "out", "--address", cluster.address]
    process = subprocess.run([*map(str, command)], env=cluster.environment, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.startswith(f"error: node {socket.gethostname()}: bundle {gone}: ")
    assert process.stderr.count("\n") == 1


def test_ray_serve_answers_and_outlives_a_replica(cluster: Cluster, bundle: str, tmp_path: Path) -> None:
    chat = with_chat_template(Path(bundle), tmp_path / "pair.bundle")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    cluster.serve(port, bundle=str(chat), cpus="1", replicas="2", sessions="true", typed_control_tokens="text")

    def post(path: str, session: str, body: Any) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "x-session-id": session}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), headers, method="POST"
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return dict(json.load(answer))

    def ask(session: str) -> dict[str, Any]:
        body = {"model": "pair", "prompt": "abababab" * 4, "temperature": 0, "max_tokens": 8}
        return post("/v1/completions", session, body)

    typed = [{"role": "user", "content": "<eos>"}]
    assert post("/tokenize", "a", {"messages": typed})["count"] == len("u:<eos>\na:")
    first = ask("a")
    again = ask("a")
    assert again["choices"][0]["text"] == first["choices"][0]["text"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 31  # the same replica, by its session
    replicas = cluster.workers("ray::ServeReplica")
    assert len(replicas) == 2
    os.kill(min(replicas), signal.SIGKILL)
    answered = 0
    deadline = time.monotonic() + PATIENCE
    while answered < 8 or cluster.workers("ray::ServeReplica") & replicas == replicas:
        with contextlib.suppress(urllib.error.HTTPError):  # what the dead replica was given before it was missed
            text = ask(f"{answered}")["choices"][0]["text"]
            assert text == first["choices"][0]["text"]
            answered += 1
        assert time.monotonic() < deadline
    wait_until(lambda: len(cluster.workers("ray::ServeReplica")) == 2)
