"""What a node of a compiled graph is for: which product, experts, attention, a norm, a gate, or something else.

The profiler names a product's shape and not its weight, so products are told apart by shape [n, k], and called by the
names of the bundle's matrices of this shape. This works for every architecture; matrices of one shape
share a line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bench.calls.ort_profile import NodeRun
from mxspec.compile.graph.operators import ATTENTION, GEGLU, PACKED_EXPERTS, PACKED_MATMUL, QKV_ATTENTION, SWIGLU
from mxspec.formats.manifest import ModelEntry
from mxspec.formats.weight_format import WEIGHT_FORMATS

Group = Literal["product", "experts", "attention", "norms", "gates", "other"]
MatrixShape = tuple[int, int]
GROUPS: tuple[Group, ...] = ("product", "experts", "attention", "norms", "gates", "other")
"""The groups in the order of the table."""
OURS: Mapping[str, Group] = {
    PACKED_MATMUL.name: "product",
    PACKED_EXPERTS.name: "experts",
    ATTENTION.name: "attention",
    QKV_ATTENTION.name: "attention",
    SWIGLU.name: "gates",
    GEGLU.name: "gates",
}
"""The groups of our operators. Norms, ours and ONNX's, are known by Norm in their names."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Nodes that are counted together; a product also has a name and the shape [n, k] of its matrix."""

    group: Group
    name: str = ""
    shape: MatrixShape | None = None


def matrix_names(entry: ModelEntry) -> dict[MatrixShape, str]:
    """Names of the packed matrices by shape: `down_proj`, or `mlp.c_proj` if there is also `attn.c_proj`."""
    names: dict[MatrixShape, set[str]] = {}
    for tensor in entry.tensors:
        if tensor.format in WEIGHT_FORMATS:
            n, k = tensor.shape
            in_layer = re.split(r"\.\d+\.", tensor.name.removesuffix(".weight"))[-1]
            names.setdefault((n, k), set()).add(in_layer)
    last = Counter(name.split(".")[-1] for name in set().union(*names.values()))

    def short(name: str) -> str:
        return name if last[name.split(".")[-1]] > 1 else name.split(".")[-1]

    return {shape: ", ".join(sorted(map(short, found))) for shape, found in names.items()}


def kind_of(node: NodeRun, names: Mapping[MatrixShape, str]) -> Kind:
    group = OURS.get(node.op, "norms" if "Norm" in node.op else "other")
    if group != "product":
        return Kind(group)
    shape = node.outputs[0][1][-1], node.inputs[0][1][-1]
    return Kind(group, names.get(shape, ""), shape)


def matrix_bytes(nodes: Iterable[NodeRun]) -> int:
    """Bytes of the packed matrices that products read: their only inputs of uint8. A lookup reads only some rows."""
    products = (node for node in nodes if OURS.get(node.op) == "product")
    return sum(int(np.prod(shape)) for node in products for kind, shape in node.inputs if kind == "uint8")
