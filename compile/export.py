"""Export a checkpoint's architecture to ONNX without touching its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from transformers import PreTrainedConfig, PreTrainedModel

from mxspec.compile import passes
from mxspec.compile.checkpoint.config import architecture_name
from mxspec.compile.graph import ExportedGraph, WeightSpec
from mxspec.compile.passes.flattenings import drop_flattenings
from mxspec.compile.passes.gates import fuse_gates
from mxspec.compile.passes.projections import fuse_projections
from mxspec.compile.passes.qkv import fuse_qkv
from mxspec.compile.passes.residuals import fuse_residuals
from mxspec.compile.passes.rotations import join_partial_rotations
from mxspec.compile.trace.attention import CallInputs
from mxspec.compile.trace.modules import PackedLinear, swap_modules
from mxspec.compile.trace.rotary import replace_rotary_modules
from mxspec.compile.trace.skeleton import build_skeleton
from mxspec.compile.trace.trace import CacheShape, graph_names, trace
from mxspec.formats.errors import RecipeError, UnsupportedModelError
from mxspec.formats.weight_format import Activations

__all__ = ["ExportedGraph", "WeightSpec", "export_graph"]

_PREFIX = "model."  # of the wrapper that speaks the graph contract, in front of every parameter name


def export_graph(
    config: PreTrainedConfig,
    *,
    weight_format: Callable[[str], str],
    context_length: int,
    cache_dtype: str,
    activations: Activations = "int16",
) -> ExportedGraph:
    """The graph of a configuration's architecture by the graph contract, and the list of the weights it wants.

    `weight_format` gives the format of a matmul weight by its parameter name (formats/weight_format.py); products whose
    format can take them make `activations` of their rows; `cache_dtype` is float16 or float32. No weights
    are read. Raises UnsupportedModelError where it cannot be done.
    """
    _check_context(config, context_length)
    call = CallInputs()
    with call.registered():
        model = build_skeleton(config)
        head = swap_modules(model, weight_format, activations, call)
        replace_rotary_modules(model, context_length)
        shape = _cache_shape(config, cache_dtype)
        constants = _constants(model)
        specs = _weight_specs(model, constants)
        graph = trace(model, call, shape)

    passes.take_values_out(graph, {_PREFIX + name: value for name, value in constants.items()})
    passes.make_reshapes_constant(graph)
    passes.simplify(graph)
    _drop_prefix(graph)
    drop_flattenings(graph)
    specs = fuse_projections(graph, specs)
    join_partial_rotations(graph)
    fuse_qkv(graph)
    fuse_gates(graph)
    fuse_residuals(graph)
    weights = _weights_of(graph, specs)
    passes.finish(graph)
    name = architecture_name(config)
    passes.check(graph, name, *graph_names(shape.layers))
    return ExportedGraph(
        model=graph,
        weights=weights,
        architecture=name,
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        vocab_size=head.source.n,
        context_length=context_length,
        cache_dtype=cache_dtype,
    )


def _check_context(config: PreTrainedConfig, context_length: int) -> None:
    limit = getattr(config, "max_position_embeddings", None)
    if context_length < 1 or (limit is not None and context_length > limit):
        raise RecipeError(
            f"context_length is {context_length}, expected 1 to {limit}, the positions that the model knows"
        )


def _cache_shape(config: PreTrainedConfig, cache_dtype: str) -> CacheShape:
    name = architecture_name(config)
    try:
        layers, heads, hidden = config.num_hidden_layers, config.num_attention_heads, config.hidden_size
    except AttributeError as error:
        raise UnsupportedModelError(f"{name}: not a plain text decoder ({error})") from error
    head_size = getattr(config, "head_dim", None) or hidden // heads
    return CacheShape(layers, getattr(config, "num_key_value_heads", None) or heads, head_size, cache_dtype)


def _constants(model: PreTrainedModel) -> dict[str, npt.NDArray[np.generic]]:
    """The model's buffers, which no checkpoint holds: computed when it was built. Packed weights have no values yet."""
    return {name: buffer.numpy() for name, buffer in model.named_buffers() if buffer.device.type != "meta"}


def _weight_specs(model: PreTrainedModel, constants: dict[str, npt.NDArray[np.generic]]) -> dict[str, WeightSpec]:
    """A spec for everything that the trace may turn into an initializer, by its name there."""
    sources: dict[int, str] = {}
    specs = {name: WeightSpec(name, "constant", str(v.dtype), v.shape, value=v) for name, v in constants.items()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        source = sources.setdefault(id(parameter), name)
        specs[name] = WeightSpec(name, "float32", "float32", tuple(parameter.shape), (source,))
    for path, module in model.named_modules():
        if isinstance(module, PackedLinear):
            matmul, name = module.source, f"{path}.weight"
            specs[name] = WeightSpec(
                name, "matmul", matmul.format, (matmul.n, matmul.k), (matmul.parameter,), matmul.transpose
            )
    return specs


def _drop_prefix(graph: ir.Model) -> None:
    for name, value in list(graph.graph.initializers.items()):
        if name.startswith(_PREFIX):
            value.name = name.removeprefix(_PREFIX)


def _weights_of(graph: ir.Model, specs: dict[str, WeightSpec]) -> list[WeightSpec]:
    """Halve embeddings, and list the specs of the initializers that are left without a value."""
    specs = dict(specs)
    tables = [name for name, spec in specs.items() if spec.kind == "float32" and len(spec.shape) == 2]
    for name in passes.store_embeddings_as_half(graph, tables):
        specs[name] = replace(specs[name], kind="embedding", format="fp16")
    weights = [specs[name] for name, value in graph.graph.initializers.items() if value.const_value is None]
    for spec in weights:
        if spec.kind == "float32" and len(spec.shape) > 1:
            raise UnsupportedModelError(
                f"{spec.name} {list(spec.shape)} is neither a linear layer nor an embedding: it would stay unpacked"
            )
    return weights
