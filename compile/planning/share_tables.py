"""Store computed tables that models share, such as cosines and sines, only once: in the target's file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.planning.layout import lay_out
from mxspec.compile.planning.plan import ModelPlan


def share_tables(plans: Sequence[ModelPlan]) -> list[ModelPlan]:
    """The plans; all but the first, the target's, borrow the target's tables with the same name and bytes."""
    target, *others = plans
    return [target, *(_borrow(plan, target) for plan in others)]


def _borrow(plan: ModelPlan, target: ModelPlan) -> ModelPlan:
    lent = {spec.name: spec for spec in target.exported.weights}
    names = [spec.name for spec in plan.exported.weights if spec.name in lent and _same(spec, lent[spec.name])]
    if not names:
        return plan
    plan = replace(plan, borrowed={name: target.layout.offsets[name] for name in names})
    return replace(plan, layout=lay_out(plan.stored))


def _same(one: WeightSpec, other: WeightSpec) -> bool:
    if one.value is None or other.value is None or one.value.dtype != other.value.dtype:
        return False
    return np.array_equal(one.value, other.value)
