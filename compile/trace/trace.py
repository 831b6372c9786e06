"""From a model without weights to a raw ONNX graph: torch.export, then torch's ONNX exporter, without optimisation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from mxspec.compile.graph.exported_graph import set_caches
from mxspec.compile.quiet import quiet_logger
from mxspec.compile.trace.interface import GraphInterface
from mxspec.compile.trace.packed import PackedModule
from mxspec.compile.trace.rotary import rotary_as_operator

OPSET = 23  # the first with RMSNormalization; ONNX Runtime 1.31 supports up to 26

aten = torch.ops.aten
# Operators that torch composes of others, but keeps for the exporter.
_KEPT = {
    aten.chunk.default,
    aten.layer_norm.default,
    aten.linear.default,
    aten.matmul.default,
    aten.softmax.int,
    aten.sym_size.int,
    aten.type_as.default,
}


def trace(interface: GraphInterface) -> ir.Model:
    """The raw graph: contract names on inputs, outputs and dimensions, parameter names on initializers, no values."""
    fake = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    _make_fake(interface, fake)
    with _third_party_noise(), torch.no_grad(), rotary_as_operator(interface.model):
        with fake:
            arguments = interface.arguments()
        dimensions = interface.dimensions()
        program = torch.export.export(interface, arguments, dynamic_shapes=dimensions, strict=False)
        program.graph.eliminate_dead_code(_stays)  # an encoder's trace has an unused decoder
        decompose_quickly(program)
        onnx_program = torch.onnx.export(
            program,
            dynamo=True,
            optimize=False,
            opset_version=OPSET,
            input_names=interface.inputs,
            output_names=interface.outputs,
            dynamic_shapes=dimensions,
            verbose=False,
        )
    assert onnx_program is not None
    graph: ir.Model = onnx_program.model
    _name_as_the_model_does(graph)
    return graph


def _stays(node: torch.fx.Node) -> bool:
    """Whether an unused node stays; torch would also keep mxspec's operators."""
    return node.op in ("placeholder", "output")


def _name_as_the_model_does(graph: ir.Model) -> None:
    """Remove the interface's prefix from the names of initializers."""
    for name, value in list(graph.graph.initializers.items()):
        value.name = name.removeprefix("model.")


def _make_fake(module: nn.Module, fake: FakeTensorMode) -> None:
    """Make every parameter and buffer a fake CPU tensor, which takes no memory."""
    made: dict[int, Tensor] = {}
    for child in module.modules():
        for store in (child._parameters, child._buffers):
            for name, tensor in store.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    with fake:
                        made[id(tensor)] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                value = made[id(tensor)]
                store[name] = nn.Parameter(value, requires_grad=False) if store is child._parameters else value  # type: ignore[assignment]


# torch's exporters warn about their own internals; a user can do nothing about it.
_NOISE = (
    (UserWarning, r"# The axis name: \w+ will not be used, since it shares the same shape constraints"),
    (FutureWarning, r"`isinstance\(treespec, LeafSpec\)` is deprecated"),
)


@contextmanager
def _third_party_noise() -> Iterator[None]:
    with warnings.catch_warnings():
        for category, message in _NOISE:
            warnings.filterwarnings("ignore", message=message, category=category)
        with quiet_logger("torch.onnx._internal.exporter._registration"):  # says that torchvision is missing
            yield


def decompose_quickly(program: ExportedProgram) -> None:
    """Let `program.run_decompositions`, which torch.onnx.export calls, trace again only where it must.

    That takes more than half the time of an export, and most programs have nothing that is decomposed except a few
    operators that change nothing: those are taken out of the program itself. The names of a graph's values differ
    then, its nodes and weights do not.
    """
    by_tracing = program.run_decompositions

    def run(table: Mapping[Any, Any] | None = None, **settings: bool) -> ExportedProgram:
        if table is None or settings or not all(_is_simple(node, table) for node in program.graph.nodes):
            decomposed: ExportedProgram = by_tracing(table, **settings)
            return decomposed
        _simplify(program.graph)
        return program

    program.run_decompositions = run


def _is_simple(node: Node, table: Mapping[Any, Any]) -> bool:
    """Whether a node stays as it is, or `_simplify` knows it."""
    operator = node.target
    if isinstance(operator, HigherOrderOperator):  # has graphs of its own
        return False
    if not isinstance(operator, OpOverload) or _changes_nothing(node):
        return True
    if operator is aten.reshape.default:
        return bool(node.all_input_nodes[0].meta["val"].is_contiguous())  # others may have no view of that shape
    if operator in table or operator._schema.is_mutable:
        return False
    return operator in _KEPT or not operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


def _changes_nothing(node: Node) -> bool:
    """Whether it is a conversion to the type that its input has, or a dropout outside training; not an output."""
    if any(user.op == "output" for user in node.users):  # the program's signature holds its name
        return False
    if node.target is aten.dropout.default:
        return not node.args[2]
    if node.target not in (aten.to.dtype, aten.to.dtype_layout):
        return False
    before, after = node.all_input_nodes[0].meta["val"], node.meta["val"]
    return bool((before.dtype, before.device, before.layout) == (after.dtype, after.device, after.layout))


def _simplify(graph: Graph) -> None:
    for node in list(graph.nodes):
        if _changes_nothing(node):
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)
        elif node.target is aten.reshape.default:
            node.target = aten.view.default


class Traces:
    """The raw graphs of one checkpoint at one context length; tracing takes most of the time of an export."""

    def __init__(self) -> None:
        self._kept: dict[type[GraphInterface], ir.Model] = {}

    def of(self, interface: GraphInterface, trace: Callable[[GraphInterface], ir.Model]) -> ir.Model:
        """A raw graph of its own for each call, in the formats of the interface's model and with its caches."""
        kind = type(interface)
        if kind not in self._kept:
            self._kept[kind] = trace(interface)
        graph = self._kept[kind].clone()
        _set_formats(graph, interface)
        set_caches(graph, interface.caches.kind, interface.caches.head_size)
        return graph


def _set_formats(graph: ir.Model, interface: GraphInterface) -> None:
    """Give products and experts the formats of the interface's modules."""
    weights: dict[str, Tensor] = {}
    attributes: dict[str, dict[str, Any]] = {}  # by the name of a node's first packed weight
    for path, module in interface.model.named_modules():
        for name in module.sources if isinstance(module, PackedModule) else ():
            weights[f"{path}.{name}"] = getattr(module, name)
            attributes[f"{path}.{name}"] = module.attributes
    for node in graph.graph:
        packed = [value for value in node.inputs if value is not None and value.name in weights]
        if not packed:
            continue
        for value in packed:
            value.shape = ir.Shape(weights[str(value.name)].shape)
        given = ir.convenience.convert_attributes(attributes[str(packed[0].name)])
        node.attributes.clear()
        node.attributes.update({attribute.name: attribute for attribute in given})
