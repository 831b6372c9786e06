"""The layout of weights files: the format and place of each weight. Tables that models share are stored once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

import numpy as np

from mxspec.compile.checkpoint.tensors.mx_tensor import MxTensor
from mxspec.compile.checkpoint.tensors.tensor import Tensor
from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.planning.model import ModelPlan
from mxspec.formats.safetensors_file import Layout, plan_layout
from mxspec.formats.weight_format import stored_as


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


def share_tables(plans: Sequence[ModelPlan]) -> list[ModelPlan]:
    """The plans; all but the first, the target's, borrow the target's tables with the same name and bytes.

    A draft that reads the target's hidden states has other names, and may have the target's own embedding.
    """
    target, *others = plans
    return [target, *(_borrow(plan, target) for plan in others)]


def _borrow(plan: ModelPlan, target: ModelPlan) -> ModelPlan:
    """Graph and specs of a plan take the target's names of the tables that it borrows."""
    borrowed: dict[str, int] = {}
    weights = []
    for spec in plan.exported.weights:
        lent = next((other for other in target.exported.weights if _lends(target, other, plan, spec)), None)
        if lent is not None:
            if spec.name != lent.name:  # one of the same name may be in an encoder's graph
                plan.exported.model.graph.initializers[spec.name].name = lent.name
            spec = replace(spec, name=lent.name)
            borrowed[lent.name] = target.layout.offsets[lent.name]
        weights.append(spec)
    if not borrowed:
        return plan
    plan = replace(plan, exported=replace(plan.exported, weights=weights), borrowed=borrowed)
    return replace(plan, layout=lay_out(plan.stored))


def _lends(target: ModelPlan, lent: WeightSpec, plan: ModelPlan, spec: WeightSpec) -> bool:
    if spec.name == lent.name:
        return _same(spec, lent)
    return plan.reads_states and (_same(spec, lent) or _same_table(target, lent, plan, spec))


def _same(one: WeightSpec, other: WeightSpec) -> bool:
    if one.value is None or other.value is None or one.value.dtype != other.value.dtype:
        return False
    return np.array_equal(one.value, other.value)


def _same_table(target: ModelPlan, lent: WeightSpec, plan: ModelPlan, spec: WeightSpec) -> bool:
    """Whether both are float16 tables of one tensor of the target's checkpoint."""
    if not spec.kind == lent.kind == "embedding" or spec.shape != lent.shape:
        return False
    (of_draft,), (of_target,) = spec.sources, lent.sources
    return plan.sources[of_draft] is target.sources[of_target]
