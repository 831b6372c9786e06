"""Many random requests, some cancelled or invalid: is any answer lost or wrong, and does memory stay constant?

    python -m bench soak build/demo.bundle --record build/records/soak.json

Threads request texts of random lengths and settings at random times. Every answer is compared with the answer of an
engine with one slot; a cancelled answer must be a prefix of it.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from bench.measurement import measurement
from bench.results import SoakResult
from mxspec import Engine, MxspecError, Request
from mxspec.evaluate.bench.machine import anonymous_bytes
from mxspec.evaluate.bench.options import bundle_argument

THREADS = 12
PIECES = ("def ", "class ", "import os\n", "for i in range(", "return ", "x = [", "\n    ", "self.", "print(")
PIECES_OF_A_PROMPT = 1, 120  # about twice as many tokens, which pass a window of 64
CANCELLED, BAD = 0.1, 0.1  # shares of the requests
PREFIX = "import sys\n\n\ndef main(argv):\n    "  # of every other prompt: slots reuse what was read


@dataclass(slots=True)
class Counts:
    """What became of the requests."""

    asked: int = 0
    whole: int = 0
    cancelled: int = 0
    refused: int = 0
    wrong: int = 0
    reused_tokens: int = 0
    reread_tokens: int = 0
    tokens: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def lost(self) -> int:
        return self.asked - self.whole - self.cancelled - self.refused


def random_request(rng: random.Random) -> dict[str, Any]:
    """The fields of a valid request."""
    prompt = (PREFIX if rng.random() < 0.5 else "") + "".join(rng.choices(PIECES, k=rng.randint(*PIECES_OF_A_PROMPT)))
    fields: dict[str, Any] = {"prompt": prompt, "max_new_tokens": rng.randrange(1, 60)}
    if rng.random() < 0.5:
        fields |= {"k": rng.choice([0, 2, 4, "auto"]), "temperature": 0}
    else:
        fields |= {"k": rng.choice([0, 3]), "temperature": 0.8, "top_p": 0.9, "seed": rng.randrange(10)}
    if rng.random() < 0.3:
        fields |= {"repetition_penalty": 1.2, "stop": "\n\n", "logprobs": 1}
    return fields


def spoil(fields: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The fields with a mistake in one of them."""
    mistakes: list[dict[str, Any]] = [{"k": 99}, {"prompt": ""}, {"prompt": [10**9]}, {"top_k": -1}, {"stop": ""}]
    return fields | rng.choice(mistakes)


def ask(engine: Engine, alone: Engine, seed: int, requests: int, counts: Counts, gate: threading.Lock) -> None:
    """The requests of one thread."""
    rng = random.Random(seed)
    for _ in range(requests):
        fields = random_request(rng)
        with counts.lock:
            counts.asked += 1
        if rng.random() < BAD:
            try:
                engine.submit(Request(**spoil(fields, rng)))
            except MxspecError:
                with counts.lock:
                    counts.refused += 1
            continue
        handle = engine.submit(Request(**fields))
        if rng.random() < CANCELLED:
            time.sleep(rng.random() / 20)
            handle.cancel()
        answer = handle.result()
        with gate:
            expected = alone.submit(Request(**fields | ({"k": 0} if fields["k"] == "auto" else {}))).result()
        right = answer.token_ids == expected.token_ids and answer.text == expected.text
        if answer.reason == "cancelled":
            right = answer.token_ids == expected.token_ids[: len(answer.token_ids)]
        with counts.lock:
            counts.whole += answer.reason != "cancelled"
            counts.cancelled += answer.reason == "cancelled"
            counts.wrong += not right
            counts.reused_tokens += answer.statistics.reused_tokens
            counts.reread_tokens += answer.statistics.reread_tokens
            counts.tokens += len(answer.token_ids)


@measurement
@bundle_argument
@click.option("--requests", default=1000, show_default=True, help="Requests in all, at least.")
@click.option("--slots", default=8, show_default=True)
@click.option("--rounds", default=5, show_default=True, help="Number of times that the requests are repeated.")
def main(bundle: Path, requests: int, slots: int, rounds: int) -> SoakResult:
    """Ask for many texts at once and compare each with itself alone."""
    counts, memory = Counts(), []
    began = time.perf_counter()
    with Engine(bundle, slots=slots) as engine, Engine(bundle, slots=1) as alone:
        for each in range(rounds):
            seeds = range(each * THREADS, (each + 1) * THREADS)
            work = -(-requests // THREADS // rounds), counts, threading.Lock()
            threads = [threading.Thread(target=ask, args=(engine, alone, seed, *work)) for seed in seeds]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            memory.append(anonymous_bytes())
        entry = engine.target.entry
    counted = {name: getattr(counts, name) for name in SoakResult.model_fields if hasattr(counts, name)}
    return SoakResult(
        **counted,
        caches=entry.caches,
        window=max(entry.layer_windows),
        slots=slots,
        asking_threads=THREADS,
        seconds=time.perf_counter() - began,
        anonymous_bytes_after_each_round=tuple(memory),
    )
