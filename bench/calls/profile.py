"""Where the time of a call goes: kinds of nodes, the time between nodes, and the time outside the session.

ONNX Runtime's profiler slows every node a little, so the same calls are also timed without it, alternating. Each line
also says how long its time is beyond reading its bytes.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from bench.calls.node_kinds import (
    GROUPS,
    Group,
    Kind,
    MatrixShape,
    kind_of,
    matrix_bytes,
    matrix_names,
)
from bench.calls.ort_profile import NodeRun, SessionRun, read_runs
from bench.calls.profile_result import CallProfile, Line, ProfileResult
from bench.measurement import measurement
from mxspec.evaluate.bench import calls as model_calls
from mxspec.evaluate.bench.calls import CallBench
from mxspec.evaluate.bench.harness import median
from mxspec.evaluate.bench.machine import ReadCeiling, pieces_of_file
from mxspec.evaluate.bench.options import bundle_argument, repetitions_option
from mxspec.evaluate.options import Progress, silent
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.runtime import ops
from mxspec.runtime.models import weight_reads
from mxspec.runtime.models.graph import session_options
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session
from mxspec.runtime.sampling.shape import Logits

ROWS = (1, 8)  # tokens of a call when decoding and when scoring
READS = 3  # plain reads of the weights' file before the calls of each point
MOST_CALLS = 200  # of one trial: the profiler keeps about 700 bytes for every node of every call

Point = tuple[int, int]  # tokens of a call, and tokens in the cache before the call


@dataclass(frozen=True, slots=True)
class ProfiledCall:
    """Seconds of one Reader.forward, and the session's run within it; logits of the last `rows` tokens."""

    point: Point
    rows: int
    seconds: float
    run: SessionRun


class ProfiledReader(Reader):
    """A text of a target whose session profiles itself into `folder`; every call is timed from outside."""

    def __init__(self, bundle: Bundle, folder: Path) -> None:
        options = session_options()
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "calls")
        super().__init__(Session.of(bundle, "target", 1, options))
        self._forwards: list[tuple[Point, int, float]] = []

    def forward(self, tokens: Sequence[int], rows: int) -> Logits:
        point = len(tokens), self.length
        began = time.perf_counter()
        logits = super().forward(tokens, rows)
        self._forwards.append((point, rows, time.perf_counter() - began))
        return logits

    def end(self) -> list[ProfiledCall]:
        """End the profile; returns every call. Raises MxspecError if ONNX Runtime did not keep all of them."""
        runs = read_runs(Path(self.session.session.end_profiling()))
        if len(runs) != len(self._forwards):  # it keeps a million events
            raise MxspecError(
                f"profile: ONNX Runtime kept {len(runs)} of {len(self._forwards)} calls; ask for fewer --repetitions"
            )
        return [ProfiledCall(*forward, run) for forward, run in zip(self._forwards, runs, strict=True)]


def measure(
    bundle: Path,
    repetitions: int,
    rows: Sequence[int] = (),
    cached: Sequence[int] = (),
    progress: Progress = silent,
) -> ProfileResult:
    """Time calls with and without the profiler, after plain reads of the weights' file, and say where the time goes.

    rows, cached: tokens of a call, and in the cache; by default those of ROWS and CACHED that fit. Raises MxspecError.
    """
    opened = Bundle.open(bundle)
    points = choose_points(rows, cached, opened.manifest.models["target"].context_length)
    ceiling = ReadCeiling(pieces_of_file(opened.weights_path("target")))
    plain: dict[Point, list[float]] = {point: [] for point in points}
    reads: dict[Point, list[float]] = {point: [] for point in points}
    with tempfile.TemporaryDirectory(prefix="mxspec-profile-") as folder:
        bench, profiled = CallBench(Reader(Session.of(opened, "target", 1))), ProfiledReader(opened, Path(folder))
        profiled_bench = CallBench(profiled)
        for repetition in range(repetitions):
            progress(f"repetition {repetition + 1} of {repetitions}")
            for point in points:
                reads[point] += [ceiling.bytes_per_second() for _ in range(READS)]
                trials = seconds_alternating((bench, profiled_bench), *point, most=MOST_CALLS)
                plain[point] += trials[:, 0].tolist()
        progress("reading the profile")
        calls = profiled.end()
    return ProfileResult(
        bundle=bundle.name,
        threads=ops.threads(),
        weight_bytes=weight_reads.read_bytes(bench.entry),
        read_bytes_per_second=median(list(itertools.chain(*reads.values()))),
        read_loop=ceiling.loop,
        calls=tuple(_describe(bench, point, plain[point], calls, median(reads[point])) for point in points),
    )


def seconds_alternating(
    benches: Sequence[CallBench], tokens: int, cached: int, most: int | None = None
) -> NDArray[np.float64]:
    """float64[calls, benches], seconds of calls of `tokens` tokens after `cached`, the models alternating."""
    for bench in benches:
        bench.fill(cached)
    ids = [bench.random_ids(tokens) for bench in benches]
    return np.array(
        [
            [bench.time_call(i, tokens) for bench, i in zip(benches, ids, strict=True)]
            for _ in model_calls.repeated(len(benches), most)
        ]
    )


def choose_points(rows: Sequence[int], cached: Sequence[int], context: int) -> list[Point]:
    """All combinations of `rows` and `cached`. Raises MxspecError if one that was asked for does not fit."""
    wanted = [(s, c) for c in cached or model_calls.CACHED for s in rows or ROWS]
    fitting = [(s, c) for s, c in wanted if s + c <= context]
    if not fitting or ((rows or cached) and fitting != wanted):
        s, c = next(point for point in wanted if point not in fitting)
        raise MxspecError(f"--rows {s} after --cached {c}: more than the bundle's context of {context} tokens")
    return fitting


def _describe(
    bench: CallBench, point: Point, plain: Sequence[float], calls: Sequence[ProfiledCall], bandwidth: float
) -> CallProfile:
    tokens, cached = point
    bench.fill(cached)
    of_experts = bench.expert_bytes(bench.random_ids(tokens))
    of_others = weight_reads.matrix_bytes(bench.entry) - weight_reads.expert_bytes(bench.entry)
    read_bytes = of_others + of_experts + bench.entry.cache_bytes(cached)
    calls = [call for call in calls if call.point == point and call.rows == tokens]
    chosen = [calls[i] for i in middle_half([call.seconds for call in calls])]
    seconds = float(np.mean([plain[i] for i in middle_half(plain)]))
    profiled = float(np.mean([call.seconds for call in chosen]))
    reads: dict[Group, int] = {"attention": bench.entry.cache_bytes(cached), "experts": of_experts}
    parts = breakdown(chosen, matrix_names(bench.entry), reads)
    return CallProfile(
        tokens=tokens,
        cached=cached,
        seconds=seconds,
        profiled_seconds=profiled,
        profiler_over_plain=profiled / seconds,
        profiler_seconds_per_node=(profiled - seconds) / sum(part.nodes for part in parts),
        cheapest_node_seconds=cheapest_node_seconds(chosen),
        read_bytes=read_bytes,
        read_bytes_per_second=bandwidth,
        ideal_seconds=read_bytes / bandwidth,
        share_of_read=read_bytes / bandwidth / seconds,
        lines=tuple(_line(part, profiled, bandwidth) for part in parts),
        trials_seconds=tuple(plain),
        trials_profiled_seconds=tuple(call.seconds for call in calls),
    )


def _line(part: BreakdownItem, profiled_seconds: float, bandwidth: float) -> Line:
    return Line(
        group=part.group,
        name=part.name,
        ops=part.ops,
        shape=part.shape,
        nodes=part.nodes,
        seconds=part.seconds,
        bytes=part.bytes,
        share=part.seconds / profiled_seconds,
        bytes_per_second=part.bytes / part.seconds if part.bytes and part.seconds else None,
        beyond_read_seconds=part.seconds - part.bytes / bandwidth,
    )


def middle_half(trials: Sequence[float]) -> list[int]:
    """Indices without the shortest and longest quarters. Robust like a median, but the means of parts add up."""
    quarter = len(trials) // 4
    return [int(i) for i in np.argsort(trials)[quarter : len(trials) - quarter]]


@dataclass(frozen=True, slots=True)
class BreakdownItem:
    """A part of a call: its nodes, mean seconds and bytes."""

    group: str
    name: str
    seconds: float
    ops: tuple[str, ...] = ()
    shape: MatrixShape | None = None
    nodes: int = 0
    bytes: int = 0


def breakdown(
    calls: Sequence[ProfiledCall], names: Mapping[MatrixShape, str], reads: Mapping[Group, int]
) -> list[BreakdownItem]:
    """The parts of a call: each kind of node, the time between nodes, and the time outside the session.

    `reads` has the bytes that all nodes of a group read in a call; those of products are found by their shapes.
    """
    found: dict[Kind, list[NodeRun]] = {}
    assert len({len(call.run.nodes) for call in calls}) == 1, "every run of a session runs the same nodes"
    for call in calls:
        for node in call.run.nodes:
            found.setdefault(kind_of(node, names), []).append(node)
    parts = [
        BreakdownItem(
            group=kind.group,
            name=_name(kind, found[kind]),
            seconds=sum(node.seconds for node in found[kind]) / len(calls),
            ops=tuple(sorted({node.op for node in found[kind]})),
            shape=kind.shape,
            nodes=len(found[kind]) // len(calls),
            bytes=reads[kind.group] if kind.group in reads else matrix_bytes(found[kind]) // len(calls),
        )
        for kind in sorted(found, key=lambda kind: GROUPS.index(kind.group))
    ]
    run = float(np.mean([call.run.seconds for call in calls]))
    between = run - sum(part.seconds for part in parts)
    outside = float(np.mean([call.seconds for call in calls])) - run
    rests = {"between nodes": between, "outside the session": outside}
    return [*parts, *(BreakdownItem(name, name, rest) for name, rest in rests.items())]


def cheapest_node_seconds(calls: Sequence[ProfiledCall]) -> float:
    """Mean seconds of the cheapest node: the profiler cannot cost more than this within a node."""
    return float(np.mean([[node.seconds for node in call.run.nodes] for call in calls], axis=0).min())


def _name(kind: Kind, nodes: Sequence[NodeRun]) -> str:
    """`down_proj`, `attention`, or `other: Cast, Gather`."""
    if kind.group == "other":
        return f"other: {', '.join(sorted({node.op for node in nodes}))}"
    return kind.name or kind.group


@measurement
@bundle_argument
@click.option(
    "--rows",
    multiple=True,
    type=click.IntRange(min=1),
    help="Number of tokens of a call. May be given several times.  [default: 1, 8]",
)
@click.option(
    "--cached",
    multiple=True,
    type=click.IntRange(min=0),
    help="Number of tokens in the cache before the call. May be given several times.  [default: 128, 1000]",
)
@repetitions_option(5)
def main(
    bundle: Path, rows: tuple[int, ...], cached: tuple[int, ...], repetitions: int, progress: Progress
) -> ProfileResult:
    """Say where the time of a target's call goes: kinds of nodes, between them, outside the session."""
    return measure(bundle, repetitions, rows, cached, progress)
