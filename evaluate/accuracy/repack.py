"""The target in another format: the matrices of the bundle's fp16 baseline, rounded to nearest and packed again.

So a user sees what another format would cost without a second compilation, which needs the checkpoint, minutes and the
disk space of a second bundle. Matrices and embeddings that the target keeps in fp16 stay in fp16. For a checkpoint in
fp16, the result equals what `speccompile --target-format NAME` writes, byte for byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError, needs
from mxspec.formats.manifest import ModelEntry, TensorEntry
from mxspec.formats.tiles import pack_values, unpack_fp16
from mxspec.formats.weight_format import (
    ELEMENTS,
    FP16_TILES,
    Activations,
    named_by_user,
    packed_shape,
    taken_activations,
)

if TYPE_CHECKING:
    import onnx_ir as ir

_PAGE = 4096  # tensors begin at multiples of it in a weights file, so that ONNX Runtime maps them
_PRODUCTS = {("PackedMatMul", 1): "", ("PackedExperts", 3): "", ("PackedExperts", 4): "down_"}
"""What the names of a matrix's attributes begin with, by its operator and input."""


@dataclass(frozen=True, slots=True)
class RepackSettings:
    """A format that a user names: `mxfp6_e2m3`, or with the type of a product's activations, `mxfp6_e2m3/int8`."""

    weight_format: str
    activations: Activations

    @classmethod
    def parse(cls, text: str) -> RepackSettings:
        """Raises MxspecError, which lists the known formats."""
        name, _, asked = text.partition("/")
        try:
            weight_format = named_by_user(name)
        except ValueError as error:
            raise MxspecError(f"--format {error}") from None
        taken = taken_activations(weight_format)
        for activations in taken:
            if activations == (asked or taken[0]):
                return cls(weight_format, activations)
        raise MxspecError(f"--format {text}: got activations {asked!r}, {name} takes {' or '.join(taken)}")


ALL = "all"


def parse_formats(texts: Sequence[str]) -> tuple[RepackSettings, ...]:
    """The formats that a user names; `all` stands for every MX format. Raises MxspecError."""
    named = chain.from_iterable((form.name for form in ELEMENTS.values()) if text == ALL else [text] for text in texts)
    return tuple(dict.fromkeys(map(RepackSettings.parse, named)))


def matrix_bytes(bundle: Bundle, wanted: RepackSettings) -> int:
    """The bytes of all packed matrices of the target in another format."""
    models = bundle.manifest.models
    kept = _kept(models["target"])
    matrices = [tensor for tensor in models["baseline"].tensors if tensor.format == FP16_TILES]
    return sum(
        tensor.bytes if kept & set(tensor.sources) else math.prod(packed_shape(wanted.weight_format, *tensor.shape))
        for tensor in matrices
    )


def _kept(target: ModelEntry) -> set[str]:
    """The checkpoint tensors that a packed target keeps in fp16."""
    of_target = target.tensors if target.format != FP16_TILES else ()
    return {source for tensor in of_target if tensor.format == FP16_TILES for source in tensor.sources}


def repack(bundle: Bundle, wanted: RepackSettings, folder: Path) -> ModelEntry:
    """Write the model into an empty folder; return the entry for opening a session. Raises MxspecError."""
    with needs("compile", "--format"):
        import onnx_ir as ir
    models = bundle.manifest.models
    baseline, target = models["baseline"], models["target"]
    kept = _kept(target)
    lookups = target.format != FP16_TILES and any(tensor.looked_up for tensor in target.tensors)
    graphs = {name: ir.load(bundle.path / name) for name in baseline.graphs}
    for graph in graphs.values():
        for tensor in baseline.tensors:
            if tensor.format == FP16_TILES and not kept & set(tensor.sources):
                _repack_matrix(graph, tensor, wanted, lookups=lookups)
    try:
        for name, graph in graphs.items():
            ir.save(graph, folder / name, external_data=f"{name}.weights", alignment=_PAGE, align_threshold=0)
    except OSError as error:
        raise MxspecError(
            f"--format: {folder} cannot hold the model: {error.strerror or error}; set TMPDIR to a larger disk"
        ) from None
    return baseline.model_copy(update={"format": wanted.weight_format, "activations": wanted.activations})


def _repack_matrix(graph: ir.Model, matrix: TensorEntry, wanted: RepackSettings, *, lookups: bool) -> None:
    """Make products, and with `lookups` also embeddings, read a matrix in the new format; saving packs the matrix."""
    import onnx_ir as ir

    before = graph.graph.initializers.get(matrix.name)
    if before is None:
        return  # the matrix belongs to the model's other graph
    stored = before.const_value
    assert stored is not None

    def pack() -> ir.TensorProtocol:
        values = unpack_fp16(np.ascontiguousarray(stored.numpy()), *matrix.shape)
        return ir.tensor(pack_values(values, wanted.weight_format).data)

    shape, dtype = ir.Shape(packed_shape(wanted.weight_format, *matrix.shape)), ir.DataType.UINT8
    value = ir.LazyTensor(pack, dtype, shape)
    packed = ir.Value(name=f"{matrix.name}.packed", shape=shape, type=ir.TensorType(dtype), const_value=value)
    graph.graph.initializers.add(packed)
    for node, index in before.uses():
        prefix = _PRODUCTS.get((node.op_type, index))
        if prefix is not None or lookups:
            node.replace_input_with(index, packed)
            node.attributes.add(ir.AttrString(f"{prefix or ''}format", wanted.weight_format))
        if prefix is not None and wanted.activations != "int16":
            node.attributes.add(ir.AttrString(f"{prefix}activations", wanted.activations))
    for matrix_value in (before, packed):
        if not matrix_value.uses():
            del graph.graph.initializers[str(matrix_value.name)]
