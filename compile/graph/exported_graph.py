"""The result of an export: a graph whose weights have no values yet, and the source of each weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from mxspec.compile.graph.operators import ATTENTION
from mxspec.formats.caches import CacheKind, cache_dtype, capacity_name, entry_size
from mxspec.formats.manifest import ExpertsEntry, StatesEntry
from mxspec.formats.weight_format import packed_shape

_CACHES = ("past_key.", "past_value.", "present_", "cross_")  # how the names of inputs and outputs begin
Kind = Literal["matmul", "embedding", "float32", "constant"]


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One initializer of the graph, and the values to write for it.

    `matmul`: `sources` stacked along n (each but the last a multiple of 16 rows), stored as packed tiles of `format`;
    `transpose` says that a source is stored [k, n]. `embedding`: one source, stored as float16 of `shape`.
    `float32`: `sources` concatenated along the first axis. `constant`: no source. A `value` is written unchanged, a
    matmul's as its tiles.
    `looked_up`: the graph also looks rows of this matmul up, as its embedding.
    """

    name: str
    kind: Kind
    format: str
    shape: tuple[int, ...]
    sources: tuple[str, ...] = ()
    transpose: bool = False
    value: npt.NDArray[np.generic] | None = field(default=None, compare=False, repr=False)
    looked_up: bool = False

    @property
    def source(self) -> str | None:
        """The first source parameter, or None for a constant."""
        return self.sources[0] if self.sources else None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the initializer in the graph."""
        if self.kind != "matmul":
            return self.shape
        n, k = self.shape
        return packed_shape(self.format, n, k)

    @property
    def stored_dtype(self) -> np.dtype[np.generic]:
        """Element type of the initializer in the graph."""
        if self.kind == "matmul":
            return np.dtype(np.uint8)
        if self.kind == "constant":
            assert self.value is not None
            return self.value.dtype
        return np.dtype(np.float16 if self.kind == "embedding" else np.float32)

    @property
    def stored_bytes(self) -> int:
        """Size of the initializer in the weights file."""
        return int(np.prod(self.stored_shape, dtype=np.int64)) * self.stored_dtype.itemsize


@dataclass(frozen=True, slots=True)
class ExportedEncoder:
    """The graph of a model's encoder, over the model's weights; sources have up to `context_length` tokens."""

    model: ir.Model
    layers: int
    context_length: int


@dataclass(frozen=True, slots=True)
class ExportedGraph:
    """A graph that keeps the graph contract, its weights without values, and the figures for the manifest.

    `weights` has every initializer without a value, also those of the encoder; small constants keep their values inside
    the graph.
    """

    model: ir.Model
    weights: list[WeightSpec]
    architecture: str
    layers: int
    kv_heads: int
    head_size: int
    vocab_size: int
    context_length: int
    caches: CacheKind
    notes: tuple[str, ...] = ()  # choices that users should know
    states: StatesEntry | None = None
    experts: ExpertsEntry | None = None
    encoder: ExportedEncoder | None = None

    @property
    def graphs(self) -> tuple[ir.Model, ...]:
        """The model's graph, and its encoder's if it has one."""
        return (self.model,) if self.encoder is None else (self.model, self.encoder.model)

    @property
    def windows(self) -> tuple[int, ...]:
        """Tokens that each layer's attention looks back at, 0 for all; in the order of the layers."""
        return tuple(node.attributes["window"].as_int() for node in self.model.graph if "window" in node.attributes)


def join_weights(weights: Sequence[WeightSpec], graph: ir.Model, more: Sequence[WeightSpec]) -> list[WeightSpec]:
    """Join `weights` and those of a second graph over the same file, `more`; shared weights are stored once.

    The second graph uses the first graph's names for shared weights.
    """
    joined, known = list(weights), {_content(spec): spec.name for spec in weights}
    for spec in more:
        name = known.get(_content(spec))
        if name is None:
            joined.append(spec)
        elif name != spec.name:
            graph.graph.initializers[spec.name].name = name
    names = [spec.name for spec in joined]
    assert len(names) == len(set(names)), f"two weights of one name: {sorted(names)}"
    return joined


def _content(spec: WeightSpec) -> tuple[object, ...]:
    """The content of the weight in a weights file, for comparison."""
    values = None if spec.value is None else spec.value.tobytes()
    return (spec.kind, spec.format, spec.shape, spec.sources, spec.transpose, values)


def set_caches(model: ir.Model, kind: CacheKind, head_size: int) -> None:
    """Make the caches that a graph reads and writes those of a kind, [slots, kv_heads, capacity, entry] each.

    The capacity of layers with a window has a name of its own.
    """
    for value in (*model.graph.inputs, *model.graph.outputs):
        if str(value.name).startswith(_CACHES):
            assert value.shape is not None
            # A type of its own: clones of a graph share theirs.
            value.type = ir.TensorType(ir.DataType.from_numpy(cache_dtype(kind)))
            value.shape = ir.Shape([*value.shape[:3], entry_size(kind, head_size)])
    for node in model.graph:
        window = node.attributes.get_int("window", 0) if node.op_type == ATTENTION.name else 0
        for cache in (*node.inputs[3:5], *node.outputs[1:3]) if window else ():
            assert cache is not None
            assert cache.shape is not None
            cache.shape = ir.Shape([*cache.shape[:2], capacity_name(window), cache.shape[3]])
