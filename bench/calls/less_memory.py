"""How slow does a model become that is larger than memory?

    python -m bench less-memory BUNDLE --share 0.6

Weights are mapped, so that the system reads what it lacks from the disk. Single tokens are decoded with the whole
weights file in memory, and while another process holds so much memory that only a share of the file's size is
available to all others. That process gives memory back as soon as others take some, and it is the first that the system
would end. Needs Linux without swap, and no rights.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from bench.measurement import measurement
from bench.results import LessMemoryResult, MemoryTrial
from mxspec.evaluate.bench.calls import CallBench, ModelBench
from mxspec.evaluate.bench.options import bundle_argument
from mxspec.runtime import ops
from mxspec.runtime.models.weight_reads import read_bytes

CACHED = 128  # tokens in the caches before each decoded one
PIECE = 64 << 20  # bytes that are taken or given back at once
LEAST = 2 << 30  # bytes that other programs are always left
WAIT_SECONDS = 0.02
SETTLING_TOKENS = 8  # decoded and not counted once memory has changed


def memory_bytes(name: str) -> int:
    """A figure of /proc/meminfo."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def disk_bytes() -> int:
    """Bytes that this process has had read from disks, by mapped pages, too."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def hold(available: int, held: Event, asker: int) -> None:
    """Take memory until `available` bytes are left to others, and keep it so while the process `asker` lives."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    pieces: list[NDArray[np.uint8]] = []
    while os.getppid() == asker:
        if not adjust(pieces, memory_bytes("MemAvailable") - available):
            held.set()
            time.sleep(WAIT_SECONDS)


def adjust(pieces: list[NDArray[np.uint8]], spare: int) -> bool:
    """Take a piece of memory where so many bytes are spare, or give one back where some lack; whether one did."""
    if spare > PIECE:
        pieces.append(np.ones(PIECE, np.uint8))
        return True
    if spare < 0 and pieces:
        pieces.pop()
        return True
    return False


@contextmanager
def left_available(available: int) -> Iterator[None]:
    """Another process leaves only `available` bytes of memory to all others."""
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    process = context.Process(target=hold, args=(available, held, os.getpid()), daemon=True)
    process.start()
    try:
        while not held.wait(1.0):
            if not process.is_alive():
                raise click.ClickException("the process that holds memory has ended: there is too little")
        yield
        if not process.is_alive():
            raise click.ClickException("the system ended the process that holds memory: others took too much")
    finally:
        process.kill()
        process.join()


def read_whole(path: Path) -> None:
    """Read a file once, so that its pages are in memory where they fit."""
    with path.open("rb", buffering=0) as file:
        while file.read(PIECE):
            pass


def decode(bench: CallBench, tokens: int) -> MemoryTrial:
    """Decode random tokens one by one."""
    bench.fill(CACHED)
    for _ in range(SETTLING_TOKENS):
        bench.time_call(bench.random_ids(1), 1)
    before = disk_bytes()
    seconds = sum(bench.time_call(bench.random_ids(1), 1) for _ in range(tokens))
    return MemoryTrial(
        available_bytes=memory_bytes("MemAvailable"),
        seconds_a_token=seconds / tokens,
        disk_bytes_a_token=(disk_bytes() - before) / tokens,
    )


@measurement
@bundle_argument
@click.option("--share", default=0.6, show_default=True, type=click.FloatRange(0.1, 1.0), help="Of the weights file.")
@click.option("--tokens", default=16, show_default=True, type=click.IntRange(min=1), help="Tokens of a trial.")
@click.option("--repetitions", default=3, show_default=True, type=click.IntRange(min=1))
def main(bundle: Path, share: float, tokens: int, repetitions: int) -> LessMemoryResult:
    """Decode with enough memory for a bundle's weights, and with less."""
    bench = ModelBench(bundle)
    size = bench.weights_file_bytes
    if memory_bytes("SwapTotal"):
        raise click.ClickException("this system has swap, where memory that a process holds goes")
    if memory_bytes("MemAvailable") < size + LEAST or share * size < LEAST:
        raise click.ClickException(
            f"expected {(size + LEAST) / 1e9:.1f} GB available, and a share above {LEAST / 1e9:.1f} GB"
        )
    enough, less = list[MemoryTrial](), list[MemoryTrial]()
    for _ in range(repetitions):
        read_whole(bench.weights_path)
        enough.append(decode(bench, tokens))
        with left_available(int(share * size)):
            less.append(decode(bench, tokens))
    return LessMemoryResult(
        bundle=bundle.name,
        threads=ops.threads(),
        tokens=tokens,
        weights_file_bytes=size,
        weight_bytes=read_bytes(bench.entry),
        enough=tuple(enough),
        less=tuple(less),
    )
