"""From a model without weights to a raw ONNX graph: torch.export, then torch's ONNX exporter, nothing optimised yet."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from transformers import PreTrainedModel

from mxspec.compile.quiet import quiet_logger
from mxspec.compile.trace.attention import CallInputs, Sequences
from mxspec.compile.trace.rotations import rotary_as_operator

_INPUTS = ("input_ids", "position_ids", "slots", "past_lengths", "new_lengths", "logits_to_keep")
OPSET = 23  # the first with RMSNormalization; ONNX Runtime 1.31 takes up to 26
CACHE_DTYPES = {"float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What a layer's cache looks like: [slots, kv_heads, capacity, head_size] of `dtype`."""

    layers: int
    kv_heads: int
    head_size: int
    dtype: str


class GraphInterface(nn.Module):
    """The model behind the inputs and outputs of the graph contract."""

    def __init__(self, model: PreTrainedModel, call: CallInputs) -> None:
        super().__init__()
        self.model = model
        self._call = call

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        slots: Tensor,
        past_lengths: Tensor,
        new_lengths: Tensor,
        logits_to_keep: Tensor,
        past: list[tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        self._call.begin(Sequences(slots, past_lengths, new_lengths), logits_to_keep, past)
        outputs = self.model(
            input_ids=input_ids,
            position_ids=position_ids,
            past_key_values=self._call,
            use_cache=True,
            return_dict=True,
        )
        return outputs.logits, self._call.presents()


def trace(model: PreTrainedModel, call: CallInputs, shape: CacheShape) -> ir.Model:
    """The raw graph: contract names on inputs, outputs and dimensions, parameter names on initializers, no values."""
    interface = GraphInterface(model, call)
    fake = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    _make_fake(interface, fake)
    with _third_party_noise(), torch.no_grad(), rotary_as_operator(model):
        with fake:
            arguments = _example_arguments(shape)
        dimensions = _dimensions(shape)
        inputs, outputs = graph_names(shape.layers)
        program = torch.export.export(interface, arguments, dynamic_shapes=dimensions, strict=False)
        onnx_program = torch.onnx.export(
            program,
            dynamo=True,
            optimize=False,
            opset_version=OPSET,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=dimensions,
            verbose=False,
        )
    assert onnx_program is not None
    graph: ir.Model = onnx_program.model
    _name_as_the_model_does(graph)
    return graph


def _name_as_the_model_does(graph: ir.Model) -> None:
    """Initializers without the prefix of the interface around the model."""
    for name, value in list(graph.graph.initializers.items()):
        value.name = name.removeprefix("model.")


def graph_names(layers: int) -> tuple[list[str], list[str]]:
    """Names of the graph's inputs and outputs, in order."""
    past, present = (
        [f"{tense}_{what}.{layer}" for layer in range(layers) for what in ("key", "value")]
        for tense in ("past", "present")
    )
    return [*_INPUTS, *past], ["logits", *present]


def _example_arguments(shape: CacheShape) -> tuple[object, ...]:
    # All different and above 1, so that none is taken for a constant.
    sequences, tokens, rows, slots, capacity = 2, 5, 3, 7, 11
    cache = (slots, shape.kv_heads, capacity, shape.head_size)
    dtype = CACHE_DTYPES[shape.dtype]
    return (
        torch.zeros(1, tokens, dtype=torch.int64),
        torch.zeros(1, tokens, dtype=torch.int64),
        torch.zeros(sequences, dtype=torch.int32),
        torch.zeros(sequences, dtype=torch.int32),
        torch.zeros(sequences, dtype=torch.int32),
        torch.zeros(rows, dtype=torch.int64),
        [(torch.zeros(cache, dtype=dtype), torch.zeros(cache, dtype=dtype)) for _ in range(shape.layers)],
    )


def _dimensions(shape: CacheShape) -> tuple[object, ...]:
    names = ("tokens", "sequences", "rows", "slots", "capacity")
    tokens, sequences, rows, slots, capacity = (torch.export.Dim(name) for name in names)
    ids, lengths, cache = {1: tokens}, {0: sequences}, {0: slots, 2: capacity}
    return (ids, ids, lengths, lengths, lengths, {0: rows}, [(cache, cache) for _ in range(shape.layers)])


def _make_fake(module: nn.Module, fake: FakeTensorMode) -> None:
    """Every parameter and buffer becomes a fake CPU tensor: it has a place in the trace and no memory."""
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


# torch's exporters warn about their own insides; a user can do nothing about it.
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
