"""The load and the attacks of bench/, small: what hurts nobody here is what they say of a published model's server."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mxspec.evaluate.bench.machine import anonymous_bytes

from .conftest import Serving

ROOT = Path(__file__).resolve().parents[2]


def attack(program: str, bundle: Path, *options: object) -> Any:
    command = [sys.executable, "-m", "bench", program, str(bundle), *map(str, options), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT)
    assert done.returncode == 0, done.stderr or done.stdout
    return json.loads(done.stdout)


def test_under_load_nothing_is_wrong_stuck_or_lost(bundle: Path) -> None:
    small = {"--requests": 80, "--clients": 8, "--slots": 3, "--queue": 2, "--distinct": 30, "--longest": 90}
    result = attack("serve-load", bundle, *itertools.chain(*small.items()))
    assert result["requests"] == 80
    assert result["whole"] + result["cancelled"] + result["malformed"] == 80
    assert (result["wrong"], result["stuck"], result["left_running"]) == (0, 0, 0)
    assert result["compared_greedy"] > 20
    assert result["compared_sampled"] > 5
    assert result["asked_again"] > 0  # the queue was full, and said so
    assert result["exit_code"] == 0


def test_grammars_that_hurt(bundle: Path) -> None:
    result = attack("serve-grammars", bundle, "--first", 22, "--alone", 0.5, "--tokens", 4)
    assert (result["process_ends"], result["wrong"], result["others"]) == (0, [], [])
    assert sum(family["refused"] + family["written"] for family in result["families"]) == 22
    assert min(family["refused"] + family["written"] for family in result["families"]) == 2  # of all kinds
    assert all(times["pieces"] and times["good_seconds"] for times in result["times"])


def test_the_memory_of_overlong_prompts_is_given_back(bundle: Path, serving: Serving) -> None:
    with serving(bundle) as server:
        body = json.dumps({"prompt": "x " * 1_500_000}).encode()
        server.post("/tokenize", {"prompt": "x"})
        before = anonymous_bytes(server.process.pid)
        with ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(server.post, ["/v1/completions", "/tokenize"] * 8, [body] * 16))
        assert {answer.status for answer in answers} == {400}
        deadline = time.monotonic() + 5
        while anonymous_bytes(server.process.pid) > before + (48 << 20):
            assert time.monotonic() < deadline, (before, anonymous_bytes(server.process.pid))
            time.sleep(0.1)
