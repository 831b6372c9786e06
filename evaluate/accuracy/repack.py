"""The target in another format: the bundle's fp16 baseline with its matrices rounded to nearest and packed anew.

Those matrices that the target keeps in fp16 stay so here, and an embedding stays fp16 where the target's does. Of a
checkpoint in fp16 this gives the very bytes that `speccompile --target-format NAME` writes.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.formats.manifest import LENDER, ModelEntry, TensorEntry
from mxspec.formats.safetensors_file import SafetensorsWriter, plan_layout
from mxspec.formats.storage import stored_as
from mxspec.formats.tiles import pack_values, unpack_fp16
from mxspec.formats.weight_format import (
    FP16_TILES,
    TILE_ROWS,
    Activations,
    named_by_user,
    packed_shape,
    taken_activations,
)

if TYPE_CHECKING:
    import onnx_ir as ir

WEIGHTS = "other.safetensors"
_PIECE_WEIGHTS = 4 << 20  # unpacked at once
_PACKED = ".packed"  # ends the name of a table's second form


@dataclass(frozen=True, slots=True)
class Wanted:
    """A format that a user names, `mxfp6_e2m3` or with what products make of their rows, `mxfp6_e2m3/int8`."""

    weight_format: str
    activations: Activations

    @classmethod
    def parse(cls, text: str) -> Wanted:
        """Raises MxspecError naming what there is."""
        name, _, asked = text.partition("/")
        try:
            weight_format = named_by_user(name)
        except ValueError as error:
            raise MxspecError(f"--format {error}") from None
        taken = taken_activations(weight_format)
        activations = next((each for each in taken if each == (asked or taken[0])), None)
        if activations is None:
            raise MxspecError(f"--format {text}: got activations {asked!r}, {name} takes {' or '.join(taken)}")
        return cls(weight_format, activations)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor of the new weights file, where its values lie in the bundle, and whether they are packed anew."""

    entry: TensorEntry
    origin: TensorEntry
    file: Path

    @property
    def packed(self) -> bool:
        return self.entry.format != self.origin.format


def repack(bundle: Bundle, wanted: Wanted, folder: Path) -> ModelEntry:
    """Write the model into an empty folder; the entry to open a session with. Raises MxspecError."""
    try:
        import onnx_ir as ir
    except ModuleNotFoundError as missing:
        raise MxspecError(
            f"--format changes a graph, which needs {missing.name}: pip install 'mxspec[compile]'"
        ) from None
    baseline = bundle.manifest.models["baseline"]
    graphs = {graph: ir.load(bundle.path / graph) for graph in baseline.graphs}
    tensors = list(_plan(bundle, wanted, set[str]().union(*map(_looked_up, graphs.values()))))
    layout = plan_layout(
        [(tensor.entry.name, *stored_as(tensor.entry.format, tensor.entry.shape)) for tensor in tensors]
    )
    _require_space(folder, layout.file_bytes)
    with SafetensorsWriter(folder / WEIGHTS, layout) as writer:
        for tensor in tensors:
            writer.begin(tensor.entry.name)
            for piece in _pieces(tensor):
                writer.append(np.ascontiguousarray(piece).data)
        writer.finish()
    entries = tuple(tensor.entry.model_copy(update={"offset": layout.offsets[tensor.entry.name]}) for tensor in tensors)
    packed = {tensor.entry.name for tensor in tensors if tensor.packed}
    for name, graph in graphs.items():
        _point_into(graph, entries, packed, wanted)
        ir.save(graph, folder / name)
    changed = {"weights": WEIGHTS, "tensors": entries, "borrowed": ()}
    formats = {"format": wanted.weight_format, "activations": wanted.activations}
    return baseline.model_copy(update=changed | formats)


def _looked_up(graph: ir.Model) -> set[str]:
    """Names of the matrices that are embeddings, too."""
    return {_matrix_name(node) for node in graph.graph if node.op_type == "PackedGather"}


def _matrix_name(node: ir.Node) -> str:
    matrix = node.inputs[1]
    assert matrix is not None
    return str(matrix.name)


def _plan(bundle: Bundle, wanted: Wanted, looked_up: set[str]) -> Iterator[_Tensor]:
    """The baseline's tensors and those it borrows, in the formats that they get."""
    models = bundle.manifest.models
    baseline, target = models["baseline"], models["target"]
    of_target = [tensor for tensor in target.tensors if target.format != FP16_TILES]
    kept = {source for tensor in of_target if tensor.format == FP16_TILES for source in tensor.sources}
    both = not any(tensor.looked_up for tensor in of_target)
    for tensor in baseline.tensors:
        packed = tensor.format == FP16_TILES and not kept & set(tensor.sources)
        name, file = tensor.name, bundle.weights_path("baseline")
        if packed and name in looked_up and both:
            yield _Tensor(tensor, tensor, file)
            name += _PACKED
        yield _Tensor(_in_format(tensor, name, wanted) if packed else tensor, tensor, file)
    for tensor in models[LENDER].tensors:
        if tensor.name in baseline.borrowed:
            yield _Tensor(tensor, tensor, bundle.weights_path(LENDER))


def _in_format(tensor: TensorEntry, name: str, wanted: Wanted) -> TensorEntry:
    stored = packed_shape(wanted.weight_format, *tensor.shape)
    return tensor.model_copy(update={"name": name, "format": wanted.weight_format, "bytes": math.prod(stored)})


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise MxspecError(f"--format: {folder} has {free >> 20} MiB free, {needed >> 20} are needed: set TMPDIR")


def _pieces(tensor: _Tensor) -> Iterator[NDArray[np.uint8]]:
    """The bytes to write, whole row tiles of a matrix or all of anything else."""
    origin = tensor.origin
    stored = np.memmap(tensor.file, np.uint8, "r", origin.offset, (origin.bytes,))
    if not tensor.packed:
        yield stored
        return
    n, k = origin.shape
    tiles = stored.reshape(packed_shape(origin.format, n, k))
    step = max(1, _PIECE_WEIGHTS // (k * TILE_ROWS))
    for begin in range(0, len(tiles), step):
        rows = min(step * TILE_ROWS, n - begin * TILE_ROWS)
        values = unpack_fp16(np.ascontiguousarray(tiles[begin : begin + step]), rows, k)
        yield pack_values(values, tensor.entry.format).data


def _point_into(graph: ir.Model, entries: Iterable[TensorEntry], packed: set[str], wanted: Wanted) -> None:
    """Have initializers point into the new file, and products take their matrices in the new format."""
    import onnx_ir as ir

    initializers = graph.graph.initializers
    for entry in entries:
        dtype, shape = stored_as(entry.format, entry.shape)
        before = initializers.get(entry.name)
        if before is None and entry.name.removesuffix(_PACKED) not in initializers:
            continue  # of the model's other graph
        kind = ir.DataType.UINT8 if dtype == "U8" or before is None else before.dtype
        assert kind is not None
        place = ir.ExternalTensor(WEIGHTS, entry.offset, entry.bytes, kind, shape=ir.Shape(shape), name=entry.name)
        if before is None:
            before = ir.Value(name=entry.name)
            initializers.add(before)
        before.shape, before.type, before.const_value = ir.Shape(shape), ir.TensorType(kind), place
    for node in [node for node in graph.graph if node.op_type in ("PackedMatMul", "PackedGather")]:
        product, name = node.op_type == "PackedMatMul", _matrix_name(node)
        if product and name + _PACKED in packed:
            name += _PACKED
            node.replace_input_with(1, initializers[name])
        if name in packed:
            node.attributes["format"] = ir.AttrString("format", wanted.weight_format)
            if product and wanted.activations != "int16":
                node.attributes["activations"] = ir.AttrString("activations", wanted.activations)
