"""What long texts cost beside the speed of calls: the first token from a prompt cache, and an idle server's memory.

    python -m bench long-texts build/smollm2-long.bundle --record build/records/long_texts.json

An engine reads a prompt, writes it to a file with Engine.save(), forgets it, and loads the file; the time to the first
token is taken after reading and after loading. Then specserve answers as many long texts as it has slots. Its anonymous
memory is taken before, with all of them in its slots, and once it has been idle.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import numpy as np

from bench.measurement import measurement
from bench.results import LongTextsResult
from mxspec import Engine
from mxspec.evaluate.bench.machine import anonymous_bytes
from mxspec.evaluate.bench.options import bundle_argument
from mxspec.evaluate.bench.serve.clients import hear, of_specserve
from mxspec.evaluate.bench.serve.server import specserve

SHORT = 1000  # tokens of the server's first prompt
ANSWER = 16  # tokens of an answer of the server
IDLE_MINUTES = 0.1
SETTLING = 120.0  # seconds in which an idle server's caches must be empty


def first_token(engine: Engine, ids: Sequence[int]) -> float:
    """Seconds to the first token after a prompt."""
    began = time.perf_counter()
    engine.generate(ids, max_new_tokens=1, temperature=0, ignore_eos=True).result()
    return time.perf_counter() - began


def prompt_cache_seconds(bundle: Path, ids: Sequence[int], repetitions: int) -> tuple[list[float], list[float], int]:
    """Seconds to the first token of reading a prompt, those from its file on, and the bytes of the file."""
    read, loaded = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder, Engine(bundle, slots=1) as engine:
        kept = Path(folder) / "kept"
        for _ in range(repetitions):
            engine.drop_idle()
            read.append(first_token(engine, ids))
            engine.save(ids, kept)
            engine.drop_idle()
            began = time.perf_counter()
            engine.load(kept)
            loaded.append(time.perf_counter() - began + first_token(engine, ids))
        return read, loaded, kept.stat().st_size


def server_bytes(bundle: Path, slots: int, texts: Sequence[Sequence[int]]) -> tuple[int, int, int]:
    """Anonymous bytes of a server before it has long texts, with all of them in its slots, and once it is idle.

    Before, it has answered one shorter prompt: the model's calls have taken their working memory.
    """
    with specserve(bundle, "--slots", slots, "--idle-minutes", IDLE_MINUTES) as server:
        client = of_specserve(server.address)
        hear(client, texts[0][:SHORT], ANSWER)
        time.sleep(2 * 60 * IDLE_MINUTES)
        before = anonymous_bytes(server.process.pid)
        with ThreadPoolExecutor(len(texts)) as clients:
            list(clients.map(lambda ids: hear(client, ids, ANSWER), texts))
        full = anonymous_bytes(server.process.pid)
        until = time.monotonic() + SETTLING
        while anonymous_bytes(server.process.pid) > full // 2 and time.monotonic() < until:
            time.sleep(1.0)
        time.sleep(2 * 60 * IDLE_MINUTES)
        return before, full, anonymous_bytes(server.process.pid)


@measurement
@bundle_argument
@click.option("--tokens", default=4000, show_default=True, help="Tokens of the prompt that is kept.")
@click.option("--slots", default=8, show_default=True, help="Slots of the server, and its texts.")
@click.option("--slot-tokens", default=8000, show_default=True, help="Tokens of each prompt of the server.")
@click.option("--repetitions", default=3, show_default=True)
def main(bundle: Path, tokens: int, slots: int, slot_tokens: int, repetitions: int) -> LongTextsResult:
    """Time a prompt cache, and weigh a server with long texts."""
    with Engine(bundle, slots=1) as engine:
        vocabulary, caches = engine.target.real_vocab, engine.target.entry.caches
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, vocabulary, slot_tokens).tolist() for _ in range(slots)]
    read, loaded, file_bytes = prompt_cache_seconds(bundle, texts[0][:tokens], repetitions)
    before, full, idle = server_bytes(bundle, slots, texts)
    return LongTextsResult(
        bundle=bundle.name,
        caches=caches,
        prompt_tokens=tokens,
        read_seconds=tuple(read),
        loaded_seconds=tuple(loaded),
        file_bytes=file_bytes,
        slots=slots,
        slot_tokens=slot_tokens,
        bytes_before=before,
        bytes_full=full,
        bytes_idle=idle,
    )
