"""Code that was written by a model: what passes, and what is kept in."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from mxspec.evaluate.tasks.sandbox import run_code
from mxspec.evaluate.tasks.task import CODE, program, read_rows

ROWS = read_rows(Path(__file__).parent / "code.jsonl", CODE)


@pytest.mark.parametrize("row", ROWS, ids=[row["entry_point"] for row in ROWS])
def test_the_canonical_solution_passes_and_another_fails(row: dict[str, str]) -> None:
    assert CODE.score(row, row["canonical_solution"]) == 1.0
    assert CODE.score(row, "    return 'something else'\n") == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "    return (\n",  # no Python
        "    raise SystemExit(0)\n",
        "    import os\n    os._exit(0)\n",
        "    return bytearray(1 << 31) and a + b\n",  # beyond the limit of memory
        "    open('big', 'wb').write(bytes(1 << 25))\n    return a + b\n",  # of a file's size
    ],
    ids=["syntax", "exit", "hard exit", "memory", "file"],
)
def test_code_that_does_not_come_to_its_end_fails(answer: str) -> None:
    assert run_code(program(ROWS[0], answer)) == "failed"


@pytest.mark.parametrize("body", ["while True: pass", "import time; time.sleep(60)"], ids=["busy", "asleep"])
def test_code_that_takes_too_long_is_ended(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that was not ended would pass, or hold up the test for ever."""
    monkeypatch.setattr("mxspec.evaluate.tasks.sandbox.STARTUP_SECONDS", 0.5)
    assert run_code(body, seconds=1.0) == "timed out"


@pytest.mark.parametrize("namespace", [True, False], ids=["namespace", "hook"])
def test_code_has_no_network(namespace: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reach = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=2)\n"
        with socket.create_connection(("127.0.0.1", port), timeout=2):  # so it could be reached
            pass
        assert run_code(reach, namespace=namespace) == "failed"
    assert run_code("x = 1", namespace=namespace) == "passed"


PROCESSES = {
    "fork": "pid = os.fork()\n        if not pid: os.setsid(); time.sleep(20); os._exit(0)",
    "forkpty": "pid, _ = os.forkpty()\n        if not pid: time.sleep(20); os._exit(0)",
    "subprocess": "subprocess.Popen(['sleep', '20'], start_new_session=True)",
    "posix_spawn": "os.posix_spawn('/bin/sleep', ['sleep', '20'], {})",
    "spawnv": "os.spawnv(os.P_NOWAIT, '/bin/sleep', ['sleep', '20'])",
    "system": "os.system('sleep 20 &')",
    "multiprocessing": "multiprocessing.get_context('spawn').Process(target=time.sleep, args=(20,)).start()",
    "ctypes": "ctypes.CDLL(None).fork() or (time.sleep(20), os._exit(0))",
}


@pytest.mark.parametrize("namespace", [True, False], ids=["namespace", "hook"])
@pytest.mark.parametrize("way", PROCESSES)
def test_code_starts_no_processes(way: str, namespace: bool) -> None:
    """A fork bomb of one process, should it be allowed after all."""
    bomb = f"""
import ctypes, multiprocessing, os, subprocess, time
for _ in range(20):
    try:
        {PROCESSES[way]}
    except PermissionError:
        continue
    os._exit(1)
"""
    assert run_code(bomb, namespace=namespace) == "passed"


def test_code_has_threads() -> None:
    assert run_code("import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()") == "passed"


def test_code_sees_no_variable_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", json.dumps("of the user"))
    assert run_code("import os\nassert 'A_SECRET' not in os.environ") == "passed"
