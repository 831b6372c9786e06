"""Weights a second that the codec packs, for each instruction set: medians of alternating trials.

python -m bench codec [--rows N] [--columns K] [--threads T] [--repetitions R] [--isa NAME]... [--json] [--record FILE]
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import click
import numpy as np
from numpy.typing import NDArray

from bench.measurement import measurement
from bench.results import CodecResult, Speed
from mxspec.evaluate.bench.harness import median, trials_of
from mxspec.formats.native import available_isas
from mxspec.formats.tiles import pack_values
from mxspec.formats.weight_format import WEIGHT_FORMATS, packed_shape
from mxspec.runtime import ops

SOURCES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Case:
    """One conversion of a matrix on one instruction set."""

    isa: str
    weight_format: str
    source: str


def make_sources(rows: int, columns: int) -> dict[str, NDArray[np.generic]]:
    """The same normally distributed weights in each type; bfloat16 as bit patterns."""
    values = np.random.default_rng(0).standard_normal((rows, columns), np.float32) * np.float32(0.02)
    bfloat16 = (values.view(np.uint32) >> 16).astype(np.uint16)
    return {"float32": values, "float16": values.astype(np.float16), "bfloat16": bfloat16}


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a case. On a busy machine the clock runs on while the cores do other work, so both times are kept."""

    seconds: float
    core_seconds: float


def pack_once(case: Case, values: NDArray[np.generic], out: NDArray[np.uint8], threads: int) -> Trial:
    """Quantise and pack the matrix into a buffer that is reused, as the streaming compiler does."""
    os.environ["MXSPEC_ISA"] = case.isa
    start, core_start = time.perf_counter(), time.process_time()
    pack_values(values, case.weight_format, dtype=case.source, out=out, threads=threads)
    return Trial(time.perf_counter() - start, time.process_time() - core_start)


def measure(cases: list[Case], rows: int, columns: int, threads: int, repetitions: int) -> dict[Case, list[Trial]]:
    """The trials of each case, after one that touches the pages."""
    sources = make_sources(rows, columns)
    outputs = {name: np.zeros(packed_shape(name, rows, columns), np.uint8) for name in WEIGHT_FORMATS}

    def trial(case: Case) -> Trial:
        return pack_once(case, sources[case.source], outputs[case.weight_format], threads)

    return trials_of(cases, trial, repetitions, warm=True)


def speed(case: Case, weights: int, trials: list[Trial]) -> Speed:
    """The medians of a case, and its trials."""
    seconds, core_seconds = [trial.seconds for trial in trials], [trial.core_seconds for trial in trials]
    return Speed(
        isa=case.isa,
        format=case.weight_format,
        source=case.source,
        weights_per_s=weights / median(seconds),
        weights_per_core_s=weights / median(core_seconds),
        read_bytes_per_s=weights * (4 if case.source == "float32" else 2) / median(seconds),
        seconds=tuple(seconds),
        core_seconds=tuple(core_seconds),
    )


@measurement
@click.option("--rows", type=click.IntRange(1), default=4096, show_default=True)
@click.option("--columns", type=click.IntRange(1), default=4096, show_default=True)
@click.option("--repetitions", type=click.IntRange(1), default=9, show_default=True)
@click.option("--isa", "isas", multiple=True, help="Instruction sets to run; all that this machine has by default.")
def main(rows: int, columns: int, repetitions: int, isas: tuple[str, ...]) -> CodecResult:
    """Weights a second that the codec quantises and packs."""
    threads = ops.threads()
    cases = [Case(isa, f, source) for isa in isas or available_isas() for f in WEIGHT_FORMATS for source in SOURCES]
    trials = measure(cases, rows, columns, threads, repetitions)
    return CodecResult(
        rows=rows,
        columns=columns,
        threads=threads,
        repetitions=repetitions,
        speeds=tuple(speed(case, rows * columns, made) for case, made in trials.items()),
    )
