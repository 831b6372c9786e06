"""Stream a model's weights: each tensor is read in pieces, packed, appended to the weights file, and dropped."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mxspec.compile.checkpoint.tensors.tensor import Tensor, Tensors, as_float32
from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.planning.layout import format_name, own_codes
from mxspec.compile.progress import Advance
from mxspec.compile.weights.journal import Journal
from mxspec.compile.weights.overlap import WriteBehind, read_ahead
from mxspec.compile.weights.rounding.grid import pack_best
from mxspec.compile.weights.rounding.store import TO_NEAREST, RoundedModel
from mxspec.formats.errors import CheckpointError
from mxspec.formats.manifest import TensorEntry
from mxspec.formats.safetensors_file import Layout, SafetensorsWriter
from mxspec.formats.tiles import PackStatistics, pack, pack_values
from mxspec.formats.weight_format import FP16_TILES, TILE_ROWS

FP16_MAX = 65504.0
PIECE_WEIGHTS = 4 << 20  # weights read at a time: 8 MB of a bfloat16 checkpoint

Piece = TypeVar("Piece")


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """The result of packing: the manifest's table, the file's hash, and the number of tensors from a killed run."""

    entries: tuple[TensorEntry, ...]
    sha256: str
    taken_over: int = 0


def pack_weights(
    specs: Sequence[WeightSpec],
    sources: Tensors,
    layout: Layout,
    path: Path,
    advance: Advance,
    rounded: RoundedModel = TO_NEAREST,
    journal: Path | None = None,
) -> PackedWeights:
    """Write the weights file, resuming where the `journal` of a killed run ends.

    Raises CheckpointError naming the tensor that cannot be packed.
    """
    offsets = layout.offsets
    with ExitStack() as files:
        log = (
            None
            if journal is None
            else files.enter_context(Journal(journal, _identity(specs, sources, layout, rounded)))
        )
        finished = [] if log is None else log.finished
        if not finished:
            path.unlink(missing_ok=True)
        writer = files.enter_context(SafetensorsWriter(path, layout, [tensor.sha256 for tensor in finished]))
        entries = [tensor.entry for tensor in finished[: writer.kept]]
        if log is not None:
            log.keep(writer.kept)
        advance(sum(entry.source_bytes for entry in entries))
        with WriteBehind() as behind:
            for spec in specs[writer.kept :]:
                behind(writer.begin, spec.name)
                statistics = PackStatistics()
                for parameter in spec.sources:
                    for packed, taken in _stream(spec, parameter, sources[parameter], advance, rounded):
                        behind(writer.append, packed.data)
                        statistics += taken
                if spec.value is not None:
                    behind(writer.append, np.ascontiguousarray(spec.value).tobytes())
                entries.append(_entry(spec, [sources[parameter] for parameter in spec.sources], offsets, statistics))
                if log is not None:
                    behind(log.add, entries[-1], writer)
        return PackedWeights(tuple(entries), writer.finish(), writer.kept)


def _identity(specs: Sequence[WeightSpec], sources: Tensors, layout: Layout, rounded: RoundedModel) -> str:
    """A hash of everything that the bytes of a weights file depend on."""
    digest = hashlib.sha256(layout.header)
    digest.update(f"{version('mxspec')} {rounded.entry!r} {rounded.search}\n".encode())
    for spec in specs:
        digest.update(f"{spec!r}\n".encode())
        if spec.value is not None:
            digest.update(np.ascontiguousarray(spec.value).tobytes())
        for source in (sources[parameter] for parameter in spec.sources):
            digest.update(f"{source.name} {source.dtype} {source.shape} {source.identity}\n".encode())
    return digest.hexdigest()


def _stream(
    spec: WeightSpec, parameter: str, source: Tensor, advance: Advance, rounded: RoundedModel
) -> Iterator[tuple[npt.NDArray[Any], PackStatistics]]:
    """The packed bytes of one checkpoint tensor, piece by piece, with the statistics of each."""
    if spec.kind == "matmul" and (matrix := rounded.matrices.get(parameter)) is not None:
        for number, tiles in enumerate(matrix.pieces()):
            yield tiles, PackStatistics() if number else matrix.statistics
        advance(source.bytes)
        return
    if own_codes(source, spec):
        for (codes, scales), taken in read_ahead(_pieces(spec, source, source.read_codes)):
            yield pack(codes, scales, source.element), PackStatistics()
            advance(taken)
        return
    for values, taken in read_ahead(_pieces(spec, source, source.read_columns if spec.transpose else source.read_rows)):
        yield _pack(spec, source, values, search=rounded.search)
        advance(taken)


def _pieces(spec: WeightSpec, source: Tensor, read: Callable[[int, int], Piece]) -> Iterator[tuple[Piece, int]]:
    """Whole row tiles of a matrix, or some rows of another tensor, each with its number of checkpoint bytes.

    `read` reads columns if the checkpoint has the matrix transposed.
    """
    rows = source.shape[1] if spec.transpose else source.shape[0]
    width = math.prod(source.shape) // rows
    step = max(1, PIECE_WEIGHTS // width // TILE_ROWS) * TILE_ROWS
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        yield read(begin, end), source.bytes // rows * (end - begin)


def _pack(
    spec: WeightSpec, source: Tensor, values: npt.NDArray[Any], *, search: bool
) -> tuple[npt.NDArray[Any], PackStatistics]:
    if spec.kind != "matmul":
        packed, statistics = _convert(values, source.dtype, np.float16 if spec.kind == "embedding" else np.float32)
    else:
        pack = pack_best if search and spec.format != FP16_TILES else pack_values
        matrix = pack(values, spec.format, spec.transpose, dtype=source.dtype)
        packed, statistics = matrix.data, matrix.statistics
    where = f"tensor {source.name!r} of {source.shard}"
    if statistics.nonfinite:
        raise CheckpointError(f"{where} holds NaN or infinity; the checkpoint is damaged")
    if statistics.overflow:
        hint = "; give it an MX format" if spec.kind == "matmul" else ""
        raise CheckpointError(f"{where} holds values beyond 65504 and cannot be stored as fp16{hint}")
    return packed, statistics


def _convert(
    values: npt.NDArray[Any], dtype: str, to: type[np.float16] | type[np.float32]
) -> tuple[npt.NDArray[Any], PackStatistics]:
    """A tensor that is not packed in float16 or float32: to nearest even, its effects counted as the packers do."""
    exact = as_float32(values, dtype)
    finite = np.isfinite(exact)
    nonfinite = int(finite.size - np.count_nonzero(finite))
    if to is np.float32:
        return exact, PackStatistics(nonfinite=nonfinite)
    overflow = int(np.count_nonzero(np.abs(exact[finite]) > FP16_MAX))
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype(np.float16)
    if nonfinite or overflow:
        return rounded, PackStatistics(nonfinite=nonfinite, overflow=overflow)
    error = exact - rounded.astype(np.float32)
    return rounded, PackStatistics(
        squared_error=float(np.sum(np.square(error, dtype=np.float64))),
        squared_norm=float(np.sum(np.square(exact, dtype=np.float64))),
        underflow=int(np.count_nonzero((rounded == 0) & (exact != 0))),
    )


def _entry(
    spec: WeightSpec, sources: Sequence[Tensor], offsets: Mapping[str, int], statistics: PackStatistics
) -> TensorEntry:
    return TensorEntry(
        name=spec.name,
        sources=tuple(source.name for source in sources),
        format=format_name(spec),
        shape=spec.shape,
        offset=offsets[spec.name],
        bytes=spec.stored_bytes,
        source_bytes=sum(source.bytes for source in sources),
        error=statistics.relative_error if sources else None,
        underflowed=statistics.underflow,
        origins=tuple(sorted(set[str]().union(*(source.origins for source in sources)))),
        own_codes=bool(sources) and all(own_codes(source, spec) for source in sources),
        looked_up=spec.looked_up,
    )
