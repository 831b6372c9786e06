"""A bundle's models as standard ONNX: operators and types that every program with the standard knows.

Compilers of accelerators need fixed shapes: they get a graph for each call, over the same weights file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import (
    CommonSubexpressionEliminationPass,
    NameFixPass,
    RemoveUnusedNodesPass,
    RemoveUnusedOpsetsPass,
)

from mxspec.compile.graph.operators import PACKED_MATMUL
from mxspec.compile.interchange.contract import (
    cache_type,
    fix_shapes,
    give_outputs,
    keep_every_token,
    make_masks,
    take_inputs,
)
from mxspec.compile.interchange.folder import EmittedFolder
from mxspec.compile.interchange.lowering import lower
from mxspec.compile.interchange.lowering.nodes import Call, WeightMatrix
from mxspec.compile.interchange.weights import (
    Scales,
    StandardTensor,
    StoredMatrix,
    opset_of,
    store_matrix,
    store_plain,
    write_weights,
)
from mxspec.compile.progress import Advance, Stages
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import CheckFailed
from mxspec.formats.manifest import LENDER, ModelEntry, ModelName, TensorEntry
from mxspec.formats.safetensors_file import Layout, plan_layout
from mxspec.formats.tiles import unpack_values
from mxspec.formats.weight_format import WEIGHT_FORMATS

_ATTENTION = ("Attention", "QkvAttention")


def emit_standard(
    bundle: Bundle, output: Path, *, force: bool, stages: Stages, scales: Scales = "e8m0", shapes: int | None = None
) -> dict[str, Any]:
    """Write each model of a bundle as NAME.onnx and NAME.safetensors into `output`; return the index.

    Scales are E8M0 bytes, or float32 for programs without E8M0. With `shapes`, a number of texts, NAME.CALL.onnx is the
    graph in the fixed shapes of each call. Raises MxspecError, and leaves nothing behind when it fails.
    """
    with EmittedFolder(output, force=force) as folder:
        models: dict[str, Any] = {}
        for name, entry in bundle.manifest.models.items():
            plan = plan_model(bundle.path, entry, scales, bundle.manifest.models[LENDER])
            folder.require_space(plan.layout.file_bytes)
            with stages.bytes(f"standard {name}", sum(tensor.bytes for tensor, _ in plan.tensors)) as advance:
                write_model(plan, bundle.path, folder.folder, advance)
            with stages.step(f"check standard {name}"):
                check(folder.folder / entry.graph)
                calls = {} if shapes is None else call_shapes(name, entry, bundle.manifest.k_max, shapes)
                for call, sizes in calls.items():
                    fixed = folder.folder / f"{name}.{call}.onnx"
                    ir.save(fix_shapes(plan.graph, *sizes, entry.context_length), fixed)
                    check(fixed)
            models[name] = {"graph": entry.graph, "weights": entry.weights, "opset": plan.opset}
            if calls:
                models[name]["calls"] = {
                    call: {"graph": f"{name}.{call}.onnx", "batch_size": texts, "sequence_length": tokens}
                    for call, (texts, tokens) in calls.items()
                }
        return folder.publish(bundle, models)


def call_shapes(name: ModelName, entry: ModelEntry, k_max: int, texts: int) -> dict[str, tuple[int, int]]:
    """How many texts and how many tokens of each a call reads, by its purpose.

    A chunk of one prompt; of all texts a token, and the K+1 scored tokens or, for the draft, the two of a catch-up.
    """
    what, length = ("catch_up", 2) if name == "draft" else ("score", k_max + 1)
    shapes = {"prefill": (1, max(entry.specializations)), "decode": (texts, 1)}
    return shapes | ({what: (texts, length)} if length in entry.specializations else {})


@dataclass(frozen=True, slots=True)
class StandardPlan:
    """A model of a bundle before it is written: its graph, and by name how each tensor is stored.

    `tensors` have the name of the bundle's file that holds them.
    """

    entry: ModelEntry
    graph: ir.Model
    tensors: Sequence[tuple[TensorEntry, str]]
    stored: Mapping[str, StoredMatrix | StandardTensor]
    layout: Layout
    scales: Scales

    @property
    def opset(self) -> int:
        """The first opset with all types of the weights."""
        return opset_of({tensor.format for tensor, _ in self.tensors} & WEIGHT_FORMATS.keys(), self.scales)


def plan_model(folder: Path, entry: ModelEntry, scales: Scales, lender: ModelEntry | None = None) -> StandardPlan:
    """Load a model's graph from the bundle in `folder`, and lay out its weights, with tables of the `lender`."""
    graph = ir.load(folder / entry.graph)
    tensors = [(tensor, entry.weights) for tensor in entry.tensors]
    if lender is not None:
        tensors += [(tensor, lender.weights) for tensor in lender.tensors if tensor.name in entry.borrowed]
    stored: dict[str, StoredMatrix | StandardTensor] = {}
    for tensor, _ in tensors:
        if tensor.format in WEIGHT_FORMATS:
            stored[tensor.name] = store_matrix(tensor, scales)
        else:
            dtype = graph.graph.initializers[tensor.name].dtype
            assert dtype is not None
            stored[tensor.name] = store_plain(tensor, dtype)
    parts = [part for one in stored.values() for part in (one.tensors if isinstance(one, StoredMatrix) else (one,))]
    layout = plan_layout([(part.name, part.file_dtype, part.file_shape) for part in parts])
    return StandardPlan(entry, graph, tensors, stored, layout, scales)


def write_model(plan: StandardPlan, source: Path, folder: Path, advance: Advance) -> None:
    """Write graph and weights, with the same file names as in the bundle in `source`."""
    entry = plan.entry
    write_weights(plan.tensors, source, plan.layout, folder / entry.weights, plan.scales, advance)
    convert(plan)
    ir.save(plan.graph, folder / entry.graph)


def convert(plan: StandardPlan) -> None:
    """Convert the bundle's graph to the standard one, in place."""
    model, entry = plan.graph, plan.entry
    constants = unpack_constants(plan)
    matrices = constants | point_to_weights(plan)
    inputs = take_inputs(model, entry)
    attentions = [node for node in model.graph if node.op_type in _ATTENTION]
    grouped = any(_heads(node, entry) != entry.kv_heads for node in attentions)
    windows = [node.attributes.get_int("window", 0) for node in attentions]
    masks = make_masks(model, inputs, windows, grouped=grouped)
    tokens = next(value for value in model.graph.inputs if value.name == "input_ids")
    lower(model, Call(matrices, tokens, masks, entry.kv_heads, entry.head_size, grouped, cache_type(entry)))
    keep_every_token(model)
    finish(model, plan.opset)
    give_outputs(model, entry)


def unpack_constants(plan: StandardPlan) -> dict[str, WeightMatrix]:
    """Packed matrices that are constants of the graph, such as the ones of a sum: small ones, kept in it as float16."""
    graph, matrices = plan.graph.graph, {}
    for node in graph:
        packed = node.inputs[1] if node.op_type == PACKED_MATMUL.name else None
        name = "" if packed is None else str(packed.name)
        if packed is None or packed.const_value is None or isinstance(plan.stored.get(name), StoredMatrix):
            continue
        n, k = (node.attributes[size].as_int() for size in ("N", "K"))
        unpacked = unpack_values(packed.const_value.numpy(), node.attributes["format"].as_string(), n, k)
        tensor = ir.tensor(unpacked.astype(np.float16), name=f"{name}.values")
        matrices[name] = WeightMatrix(
            ir.Value(
                name=tensor.name, shape=ir.Shape(unpacked.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
            ),
            None,
        )
    for matrix in matrices.values():
        graph.initializers.add(matrix.values)
    return matrices


def point_to_weights(plan: StandardPlan) -> dict[str, WeightMatrix]:
    """Replace the bundle's initializers by those of the stored tensors; return the matrices by name."""
    places = {tensor.name: tensor for tensor in plan.layout.tensors}
    initializers = plan.graph.graph.initializers

    def external(tensor: StandardTensor) -> ir.Value:
        place, shape = places[tensor.name], ir.Shape(tensor.shape)
        value = ir.ExternalTensor(
            plan.entry.weights, place.offset, place.bytes, tensor.dtype, shape=shape, name=tensor.name
        )
        return ir.Value(name=tensor.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=value)

    matrices = {}
    for name, one in plan.stored.items():
        if isinstance(one, StandardTensor):
            initializers[name].const_value = external(one).const_value
            continue
        del initializers[name]
        values, scales = external(one.values), None if one.scales is None else external(one.scales)
        matrices[name] = WeightMatrix(values, scales)
        for value in (values, scales):
            if value is not None:
                initializers.add(value)
    return matrices


def finish(model: ir.Model, opset: int) -> None:
    """Remove duplicates, unused nodes and shapes of the batch of one; set the opset and its IR version."""
    for a_pass in (RemoveUnusedNodesPass(), CommonSubexpressionEliminationPass(), RemoveUnusedOpsetsPass()):
        a_pass(model)
    model.graph.opset_imports[""] = opset
    model.ir_version = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
    ours = {*model.graph.inputs, *model.graph.outputs}
    for node in model.graph:
        for value in node.outputs:
            if value not in ours:
                value.shape = value.type = None
    NameFixPass()(model)


def check(path: Path) -> None:
    """Let onnx check operators, types and shapes. Raises CheckFailed."""
    try:
        onnx.checker.check_model(path, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise CheckFailed(f"{path.name}: not what ONNX expects: {error}") from None


def _heads(node: ir.Node, entry: ModelEntry) -> int:
    """The number of query heads."""
    query = node.inputs[0]
    assert query is not None
    assert query.shape is not None
    last = query.shape[2]
    assert isinstance(last, int)
    return last if node.op_type == "Attention" else last // entry.head_size - 2 * entry.kv_heads
