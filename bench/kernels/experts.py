"""The experts of a mixture's layer alone, each call beside a plain read of the bytes that it touches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.kernels.ops_result import ExpertsTimes
from bench.shapes.random_weights import random_tiles
from mxspec.evaluate.bench.harness import median, trials_of
from mxspec.evaluate.bench.machine import Pair, ReadCeiling, describe_pairs
from mxspec.evaluate.options import Progress, silent
from mxspec.formats.weight_format import WEIGHT_FORMATS, Activations
from mxspec.runtime.ops.timing import time_experts

FORMATS = ("mxfp6_e2m3", "mxfp4_e2m1")
ROWS = (1, 2, 4, 8, 128)
CALLS = 5  # of a trial, each with other experts
MANY_ROWS = 64  # from here on, a trial of one call takes long enough


@dataclass(frozen=True, slots=True)
class ExpertsLayer:
    """Sizes of a published mixture's layer; a row goes through top_k of its experts."""

    name: str
    experts: int
    top_k: int
    k: int
    inner: int
    n: int
    gate: str


LAYERS = (
    ExpertsLayer("OLMoE-1B-7B", 64, 8, 2048, 1024, 2048, "silu"),
    ExpertsLayer("gpt-oss-20b", 32, 4, 2880, 2880, 2880, "clamped_swiglu"),
)


class PackedLayer:
    """A layer in random weights, every expert the same ones, and the speed of reading its matrices."""

    def __init__(self, layer: ExpertsLayer, weight_format: str) -> None:
        rng = np.random.default_rng(0)
        self.layer, self.weight_format = layer, weight_format
        self.gate_up = np.tile(random_tiles(weight_format, 2 * layer.inner, layer.k, rng), (layer.experts, 1))
        self.down = np.tile(random_tiles(weight_format, layer.n, layer.inner, rng), (layer.experts, 1))
        self.ceilings = [ReadCeiling(packed.reshape(layer.experts, -1)) for packed in (self.gate_up, self.down)]

    @property
    def expert_bytes(self) -> int:
        return (self.gate_up.nbytes + self.down.nbytes) // self.layer.experts


@dataclass(frozen=True, slots=True)
class Call:
    """The times of a call, and how many experts it touched."""

    pair: Pair
    experts: int


@dataclass(frozen=True, slots=True)
class Case:
    """The rows of a call, on one instruction set."""

    isa: str
    rows: int


def measure_experts(
    isas: Sequence[str],
    formats: Sequence[str],
    activations: Sequence[Activations],
    rows: Sequence[int],
    repetitions: int,
    progress: Progress = silent,
) -> Iterator[ExpertsTimes]:
    """Time each layer in each of the formats, with int8 rows if they are asked for; not on the scalar reference."""
    cases = [Case(isa, count) for isa in isas if isa != "scalar" for count in rows]
    kind: Activations = "int8" if "int8" in activations else "int16"
    for layer, weight_format in itertools.product(LAYERS, formats) if cases else ():
        packed, rng = PackedLayer(layer, weight_format), np.random.default_rng(1)

        def label(case: Case, name: str = f"{layer.name} in {weight_format}, {kind}") -> str:
            return f"{case.rows} rows by the experts of {name}, {case.isa}"

        def trial(case: Case, packed: PackedLayer = packed, rng: np.random.Generator = rng) -> list[Call]:
            return time_calls(case, packed, kind, rng)

        for case, found in trials_of(cases, trial, repetitions, progress, label=label).items():
            yield _describe(case, packed, kind, found)


def time_calls(case: Case, packed: PackedLayer, kind: Activations, rng: np.random.Generator) -> list[Call]:
    """Calls with random experts, each beside a read of the matrices of as many other experts."""
    layer = packed.layer
    x = rng.standard_normal((case.rows, layer.k), np.float32)
    calls = []
    for _ in range(1 if case.rows >= MANY_ROWS else CALLS):
        chosen = evenly_routed(case.rows, layer, rng)
        seconds = time_experts(
            ((packed.weight_format, kind), (packed.weight_format, kind)),
            packed.gate_up,
            packed.down,
            x,
            chosen[None],
            experts=layer.experts,
            inner=layer.inner,
            gate=layer.gate,
            isa=case.isa,
        )
        assert seconds is not None
        touched = np.unique(chosen)
        read = sum(ceiling.seconds_after(int(expert)) for expert in touched for ceiling in packed.ceilings)
        calls.append(Call(Pair(float(seconds[0]), read), len(touched)))
    return calls


def evenly_routed(rows: int, layer: ExpertsLayer, rng: np.random.Generator) -> NDArray[np.int64]:
    """int64[rows, top_k]: of each row, different experts, all of them equally likely."""
    return np.argsort(rng.random((rows, layer.experts)), axis=1)[:, : layer.top_k].copy()


def _describe(
    case: Case, packed: PackedLayer, kind: Activations, repetitions: Sequence[Sequence[Call]]
) -> ExpertsTimes:
    layer = packed.layer
    found = describe_pairs([[call.pair for call in calls] for calls in repetitions])
    calls = [call for trial in repetitions for call in trial]
    multiplies = case.rows * layer.top_k * layer.inner * (2 * layer.k + layer.n)
    return ExpertsTimes(
        layer=layer.name,
        isa=case.isa,
        format=packed.weight_format,
        activations=kind if WEIGHT_FORMATS[packed.weight_format].activations else "float32",
        rows=case.rows,
        experts=median([call.experts for call in calls]),
        bytes=median([call.experts * packed.expert_bytes for call in calls]),
        bytes_per_second=median([call.experts * packed.expert_bytes / call.pair.seconds for call in calls]),
        multiply_adds_per_second=multiplies / found.seconds,
        **dict(found),
    )
