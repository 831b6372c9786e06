"""Export a checkpoint's architecture to ONNX without touching its weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from transformers import PreTrainedConfig, PreTrainedModel

from mxspec.compile.checkpoint.buffers import load_buffers
from mxspec.compile.checkpoint.settings.architecture import (
    architecture_name,
    decoder_heads,
    decoder_layers,
    head_size,
)
from mxspec.compile.checkpoint.settings.config import CONFIG
from mxspec.compile.checkpoint.settings.mx_config import take_layout
from mxspec.compile.checkpoint.tensors.tensor import Tensors
from mxspec.compile.graph.exported_graph import ExportedEncoder, ExportedGraph, WeightSpec, join_weights
from mxspec.compile.heads.head import HeadConfig, StatesHead
from mxspec.compile.passes import run_passes
from mxspec.compile.passes.contract import check_graph, experts_of, weights_of
from mxspec.compile.passes.embeddings import StoredOnce, never
from mxspec.compile.planning.formats import Formats
from mxspec.compile.planning.model import Model
from mxspec.compile.trace.attention import CallInputs
from mxspec.compile.trace.decoder import DecoderInterface, HeadInterface, SourceDecoderInterface
from mxspec.compile.trace.encoder import EncoderInterface, SourceCall
from mxspec.compile.trace.families import adapt, attention_of, prepare
from mxspec.compile.trace.interface import CacheShape, GraphInterface
from mxspec.compile.trace.modules import swap_modules
from mxspec.compile.trace.packed import PackedModule
from mxspec.compile.trace.rotary import replace_rotary_modules
from mxspec.compile.trace.skeleton import ATTENTION_NAME, build_skeleton
from mxspec.compile.trace.trace import trace
from mxspec.formats.caches import CacheKind
from mxspec.formats.errors import RecipeError
from mxspec.formats.manifest import StatesEntry
from mxspec.formats.weight_format import BLOCK


def export_graph(model: Model, formats: Formats, buffers: Tensors = MappingProxyType({})) -> ExportedGraph:
    """The graph of a model's architecture, by the graph contract, and the weights that it needs.

    No weights are read, only small `buffers` (checkpoint/buffers.py). A model with an encoder has a second graph, for
    sources of up to `source_length` tokens. Raises UnsupportedModelError if the model cannot be exported.
    """
    config = copy.deepcopy(model.config)  # tracing changes it
    take_layout(config, Path(CONFIG))
    prepare(config)
    name, shape = architecture_name(config), _cache_shape(config, model.caches)
    rows, stored_once = (None, formats.stored_once) if model.rows is None else (len(model.rows), never)
    call, source_call = CallInputs(), SourceCall()
    source_call.positions = call.positions
    with call.registered():
        module = build_skeleton(config, attention_of(config))
        module.config._attn_implementation = ATTENTION_NAME
        load_buffers(module, buffers)
        adapt(module, call)
        head = swap_modules(module, formats.of, model.wanted.activations, call, rows)
        notes = replace_rotary_modules(module, model.context_length)
        specs = _weight_specs(module)
        interface = _interface(module, call, shape, model.hidden_state_outputs)
        graph, weights = _finish(model.traces.of(interface, trace), interface, name, dict(specs), stored_once, ())
    encoder = None
    if config.is_encoder_decoder:
        assert model.source_length is not None
        with source_call.registered():
            reader = EncoderInterface(module, source_call, shape)
            of_encoder, its_weights = _finish(model.traces.of(reader, trace), reader, name, specs, stored_once, weights)
        weights = join_weights(weights, of_encoder, its_weights)
        encoder = ExportedEncoder(of_encoder, int(config.num_hidden_layers), model.source_length)
    return ExportedGraph(
        model=graph,
        weights=weights,
        architecture=name,
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        vocab_size=head.source.n,
        context_length=model.context_length,
        caches=model.caches,
        notes=notes,
        states=_states(config, model.hidden_state_outputs),
        experts=experts_of(graph),
        encoder=encoder,
    )


def _interface(
    model: PreTrainedModel, call: CallInputs, shape: CacheShape, hidden_state_outputs: Sequence[int]
) -> DecoderInterface:
    """What the graph takes and gives beside the caches."""
    if model.config.is_encoder_decoder:
        return SourceDecoderInterface(model, call, shape)
    if isinstance(model, StatesHead):
        return HeadInterface(model, call, shape)
    return DecoderInterface(model, call, shape, hidden_state_outputs)


def _finish(
    graph: ir.Model,
    interface: GraphInterface,
    architecture: str,
    specs: dict[str, WeightSpec],
    stored_once: StoredOnce,
    beside: Sequence[WeightSpec],
) -> tuple[ir.Model, list[WeightSpec]]:
    """The traced graph in the bundle's form, and its weights."""
    run_passes(graph, specs, stored_once, beside)
    check_graph(graph, architecture, interface.inputs, interface.outputs)
    return graph, weights_of(graph, specs)


def _states(config: PreTrainedConfig, hidden_state_outputs: Sequence[int]) -> StatesEntry | None:
    """The hidden states that the graph gives or reads."""
    if isinstance(config, HeadConfig):
        layers = config.hidden_state_outputs or range(config.hidden_state_count)
        return StatesEntry(layers=tuple(layers), width=config.states_width, own=config.hidden_size)
    return StatesEntry(layers=tuple(hidden_state_outputs), width=config.hidden_size) if hidden_state_outputs else None


def _cache_shape(config: PreTrainedConfig, caches: CacheKind) -> CacheShape:
    kv_heads = getattr(config, "num_key_value_heads", None) or decoder_heads(config)
    size = head_size(config)
    if caches == "mxint8" and size % BLOCK:
        raise RecipeError(
            f"caches: got mxint8, which needs heads of a multiple of {BLOCK} numbers, and {architecture_name(config)} "
            f"has heads of {size}; choose float16"
        )
    return CacheShape(decoder_layers(config), kv_heads, size, caches)


def _constants(model: PreTrainedModel) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
    """The model's buffers, computed when it was built; no checkpoint has them. Packed weights have no values yet."""
    for name, buffer in model.named_buffers(remove_duplicate=False):
        if buffer.device.type != "meta":
            yield name, buffer.numpy()


def _weight_specs(model: PreTrainedModel) -> dict[str, WeightSpec]:
    """A spec for everything that the trace may turn into an initializer, by its name in the trace."""
    sources: dict[int, str] = {}
    specs = {name: WeightSpec(name, "constant", str(v.dtype), v.shape, value=v) for name, v in _constants(model)}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        source = sources.setdefault(id(parameter), name)
        specs[name] = WeightSpec(name, "float32", "float32", tuple(parameter.shape), (source,))
    for path, module in model.named_modules():
        for leaf, packed in module.sources.items() if isinstance(module, PackedModule) else ():
            name = f"{path}.{leaf}"
            specs[name] = WeightSpec(
                name, "matmul", packed.format, (packed.n, packed.k), (packed.parameter,), packed.transpose
            )
    return specs
