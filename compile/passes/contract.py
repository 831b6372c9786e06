"""Check that a graph keeps the graph contract, and say which weights it has."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.graph.operators import PACKED_EXPERTS
from mxspec.compile.passes.embeddings import is_rearranged
from mxspec.compile.passes.nodes import is_node_of, last_dimension, nodes_of
from mxspec.formats.errors import UnsupportedModelError
from mxspec.formats.manifest import ExpertsEntry

# These make a row's bits depend on its batch, or hide a weight from the packer: no bundle's graph may have one, nor a
# Softmax along another axis than the last.
_FORBIDDEN = {"ReduceMean", "ReduceSum", "Cos", "Sin", "MatMul", "Gemm", "Einsum", "CumSum", "Conv"}


def check_graph(model: ir.Model, architecture: str, inputs: list[str], outputs: list[str]) -> None:
    """Raise UnsupportedModelError if a model's graph breaks the contract."""
    counts = Counter(node.op_type for node in model.graph if node.op_type in _FORBIDDEN or _mixes_rows(node))
    if counts:
        found = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        raise UnsupportedModelError(
            f"{architecture}: its graph holds {found}, which no pass could replace: "
            "results would depend on the batch, or weights would stay unpacked"
        )
    for what, got, wanted in (
        ("inputs", [value.name for value in model.graph.inputs], inputs),
        ("outputs", [value.name for value in model.graph.outputs], outputs),
    ):
        assert got == wanted, f"{architecture}: graph {what} are {got}, expected {wanted}"
    unused = [value.name for value in model.graph.inputs if not value.uses() and value.name != "position_ids"]
    if unused:
        raise UnsupportedModelError(f"{architecture}: its graph does not use {', '.join(map(str, unused))}")


def _mixes_rows(node: ir.Node) -> bool:
    """Whether a node is a Softmax over entries of several rows, or along an axis that cannot be told."""
    if node.op_type != "Softmax":
        return False
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    axis = node.attributes.get_int("axis", -1)
    return axis != -1 and (shape is None or axis != len(shape) - 1)


def _reads_little(node: ir.Node) -> bool:
    """Whether a node reads a parameter that is no matrix: a factor, a term, or biases of experts."""
    return node.op_type in ("Mul", "Add", "Squeeze") or is_node_of(PACKED_EXPERTS, node) or is_rearranged(node)


def weights_of(model: ir.Model, specs: dict[str, WeightSpec]) -> list[WeightSpec]:
    """The specs of the initializers without a value; raises UnsupportedModelError for a matrix that is not packed."""
    values = [value for value in model.graph.initializers.values() if value.const_value is None]
    weights = [specs[str(value.name)] for value in values]
    for spec, value in zip(weights, values, strict=True):
        small = all(_reads_little(use.node) for use in value.uses())
        if spec.kind == "float32" and len(spec.shape) > 1 and not small:
            raise UnsupportedModelError(
                f"{spec.name} {list(spec.shape)} is neither a linear layer nor an embedding: it would stay unpacked"
            )
    return weights


def experts_of(model: ir.Model) -> ExpertsEntry | None:
    """The experts of a mixture's graph; raises UnsupportedModelError if layers have different numbers of them."""
    nodes, slot = nodes_of(PACKED_EXPERTS, model), PACKED_EXPERTS.slot
    sizes = {(node.attributes.get_int("experts"), _chosen(node)) for node in nodes}
    if not nodes:
        return None
    if len(sizes) > 1:
        said = ", ".join(f"{chosen} of {count}" for count, chosen in sorted(sizes))
        raise UnsupportedModelError(f"layers that choose different numbers of experts ({said}) are not supported")
    ((count, chosen),) = sizes
    read = [node.inputs[slot(name)] for node in nodes for name in ("gate_up", "down")]
    tensors = tuple(str(value.name) for value in read if value is not None)
    return ExpertsEntry(count=count, chosen=chosen, tensors=tensors)


def _chosen(node: ir.Node) -> int:
    """How many experts each token chooses."""
    ids = node.inputs[PACKED_EXPERTS.slot("chosen")]
    found = None if ids is None else last_dimension(ids)
    assert found is not None, "TopK has a constant k"
    return found
