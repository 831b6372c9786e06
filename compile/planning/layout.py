"""How each weight will be stored, and where: the layout of a model's weights file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from mxspec.compile.checkpoint.mx_tensor import MxTensor, Source
from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.formats.errors import CheckpointError
from mxspec.formats.safetensors_file import Layout, plan_layout
from mxspec.formats.storage import stored_as
from mxspec.formats.weight_format import TILE_ROWS

Sources = Mapping[str, Source]  # by parameter name


def plan_weights(specs: Sequence[WeightSpec], sources: Sources) -> Layout:
    """Where each weight will lie. Raises CheckpointError for a tensor of another shape than its parameter."""
    for spec in specs:
        _check_shapes(spec, [sources[parameter] for parameter in spec.sources])
    return lay_out(specs)


def lay_out(specs: Sequence[WeightSpec]) -> Layout:
    """Where each weight will lie, whatever its values."""
    return plan_layout([(spec.name, *stored_as(format_name(spec), spec.shape)) for spec in specs])


def format_name(spec: WeightSpec) -> str:
    """The spec's format as the manifest calls it."""
    if spec.kind == "matmul":
        return spec.format
    return {"float16": "fp16"}.get(spec.stored_dtype.name, spec.stored_dtype.name)


def own_codes(source: Source, spec: WeightSpec) -> TypeGuard[MxTensor]:
    """Whether a matrix's codes and scales are the checkpoint's own, which nothing rounds again."""
    return isinstance(source, MxTensor) and spec.kind == "matmul" and spec.format == source.format


def _check_shapes(spec: WeightSpec, sources: Sequence[Source]) -> None:
    """Sources are stacked along the rows; all but the last must fill whole row tiles of a packed matrix."""
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
        raise CheckpointError(f"{names}: {rows} rows, but {spec.name} has {spec.shape[0]}: config.json does not fit")
    assert spec.kind != "matmul" or all(shape[0] % TILE_ROWS == 0 for shape in shapes[:-1]), spec
