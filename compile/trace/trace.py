"""From a model without weights to a raw ONNX graph: torch.export, then torch's ONNX exporter, without optimisation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from mxspec.compile.quiet import quiet_logger
from mxspec.compile.trace.decompositions import decompose_quickly
from mxspec.compile.trace.interface import GraphInterface
from mxspec.compile.trace.rotations import rotary_as_operator

OPSET = 23  # the first with RMSNormalization; ONNX Runtime 1.31 supports up to 26


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
