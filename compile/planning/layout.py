"""The layout of a model's weights file: the format and place of each weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from mxspec.compile.checkpoint.tensors.mx_tensor import MxTensor
from mxspec.compile.checkpoint.tensors.tensor import Tensor, Tensors
from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.formats.errors import CheckpointError
from mxspec.formats.safetensors_file import Layout, plan_layout
from mxspec.formats.weight_format import TILE_ROWS, stored_as


def plan_weights(specs: Sequence[WeightSpec], sources: Tensors) -> Layout:
    """The place of each weight. Raises CheckpointError if a tensor's shape differs from its parameter's."""
    for spec in specs:
        _check_shapes(spec, [sources[parameter] for parameter in spec.sources])
    return lay_out(specs)


def lay_out(specs: Sequence[WeightSpec]) -> Layout:
    """The place of each weight, from shapes alone."""
    return plan_layout([(spec.name, *stored_as(format_name(spec), spec.shape)) for spec in specs])


def format_name(spec: WeightSpec) -> str:
    """The manifest's name of the spec's format."""
    if spec.kind == "matmul":
        return spec.format
    return {"float16": "fp16"}.get(spec.stored_dtype.name, spec.stored_dtype.name)


def own_codes(source: Tensor, spec: WeightSpec) -> TypeGuard[MxTensor]:
    """Whether a matrix keeps the checkpoint's own codes and scales, which are never rounded again."""
    return isinstance(source, MxTensor) and spec.kind == "matmul" and spec.format == source.format


def _check_shapes(spec: WeightSpec, sources: Sequence[Tensor]) -> None:
    """Check the shapes of sources, which are stacked along the rows; all but the last must fill whole row tiles."""
    shapes = [source.shape[::-1] if spec.transpose else source.shape for source in sources]
    for source, shape in zip(sources, shapes, strict=True):
        if len(shape) != len(spec.shape) or shape[1:] != spec.shape[1:]:
            raise CheckpointError(
                f"tensor {source.name!r} of {source.shard} has shape {list(source.shape)}, but {spec.name} is "
                f"{list(spec.shape)}: config.json belongs to another checkpoint"
            )
    rows = sum(shape[0] for shape in shapes)
    if sources and rows != spec.shape[0]:
        names = ", ".join(repr(source.name) for source in sources)
        raise CheckpointError(
            f"{names}: {rows} rows, but {spec.name} has {spec.shape[0]}: config.json belongs to another checkpoint"
        )
    assert spec.kind != "matmul" or all(shape[0] % TILE_ROWS == 0 for shape in shapes[:-1]), spec
