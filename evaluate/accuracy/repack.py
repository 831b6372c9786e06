"""The target in another format: the matrices of the bundle's fp16 baseline, rounded to nearest and packed again.

Matrices and embeddings that the target keeps in fp16 stay in fp16. For a checkpoint in fp16, the result equals what
`speccompile --target-format NAME` writes, byte for byte.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.formats.manifest import ModelEntry, TensorEntry
from mxspec.formats.tiles import pack_values, unpack_fp16
from mxspec.formats.weight_format import FP16_TILES, Activations, named_by_user, packed_shape, taken_activations

if TYPE_CHECKING:
    import onnx_ir as ir

_PAGE = 4096  # tensors begin at multiples of it in a weights file, so that ONNX Runtime maps them


@dataclass(frozen=True, slots=True)
class Wanted:
    """A format that a user names: `mxfp6_e2m3`, or with the type of a product's activations, `mxfp6_e2m3/int8`."""

    weight_format: str
    activations: Activations

    @classmethod
    def parse(cls, text: str) -> Wanted:
        """Raises MxspecError, which lists the known formats."""
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


def repack(bundle: Bundle, wanted: Wanted, folder: Path) -> ModelEntry:
    """Write the model into an empty folder; return the entry for opening a session. Raises MxspecError."""
    try:
        import onnx_ir as ir
    except ModuleNotFoundError as missing:
        raise MxspecError(
            f"--format changes a graph, which needs {missing.name}: pip install 'mxspec[compile]'"
        ) from None
    models = bundle.manifest.models
    baseline, target = models["baseline"], models["target"]
    of_target = [tensor for tensor in target.tensors if target.format != FP16_TILES]
    kept = {source for tensor in of_target if tensor.format == FP16_TILES for source in tensor.sources}
    lookups = any(tensor.looked_up for tensor in of_target)
    graphs = {name: ir.load(bundle.path / name) for name in baseline.graphs}
    for graph in graphs.values():
        for tensor in baseline.tensors:
            if tensor.format == FP16_TILES and not kept & set(tensor.sources):
                _repack_matrix(graph, tensor, wanted, lookups=lookups)
    _require_space(folder, graphs.values())
    for name, graph in graphs.items():
        ir.save(graph, folder / name, external_data=f"{name}.weights", alignment=_PAGE, align_threshold=0)
    return baseline.model_copy(update={"format": wanted.weight_format, "activations": wanted.activations})


def _repack_matrix(graph: ir.Model, matrix: TensorEntry, wanted: Wanted, *, lookups: bool) -> None:
    """Make products, and with `lookups` also embeddings, read a matrix in the new format; saving packs the matrix."""
    import onnx_ir as ir

    before = graph.graph.initializers.get(matrix.name)
    if before is None:
        return  # the matrix belongs to the model's other graph
    stored = before.const_value
    assert stored is not None
    shape, dtype = ir.Shape(packed_shape(wanted.weight_format, *matrix.shape)), ir.DataType.UINT8
    value = ir.LazyTensor(partial(_pack, stored, matrix, wanted.weight_format), dtype, shape)
    packed = ir.Value(name=f"{matrix.name}.packed", shape=shape, type=ir.TensorType(dtype), const_value=value)
    graph.graph.initializers.add(packed)
    for node, index in before.uses():
        product = node.op_type == "PackedMatMul"
        if product or lookups:
            node.replace_input_with(index, packed)
            node.attributes["format"] = ir.AttrString("format", wanted.weight_format)
        if product and wanted.activations != "int16":
            node.attributes["activations"] = ir.AttrString("activations", wanted.activations)
    for matrix_value in (before, packed):
        if not matrix_value.uses():
            del graph.graph.initializers[str(matrix_value.name)]


def _pack(stored: ir.TensorProtocol, matrix: TensorEntry, weight_format: str) -> ir.TensorProtocol:
    import onnx_ir as ir

    values = unpack_fp16(np.ascontiguousarray(stored.numpy()), *matrix.shape)
    return ir.tensor(pack_values(values, weight_format).data)


def _require_space(folder: Path, graphs: Iterable[ir.Model]) -> None:
    values = [value for graph in graphs for value in graph.graph.initializers.values()]
    needed = sum(value.const_value.nbytes for value in values if value.const_value is not None)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise MxspecError(f"--format: {folder} has {free >> 20} MiB free, {needed >> 20} are needed: set TMPDIR")
