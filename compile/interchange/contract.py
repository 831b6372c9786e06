"""Inputs and outputs of a standard model, with Optimum's names and shapes, which other programs know.

    input_ids, position_ids  int64[batch_size, sequence_length]
    attention_mask           int64[batch_size, total_sequence_length]; 0 where a text has padding
    past_key_values.N.key    [batch_size, kv_heads, past_sequence_length, head_size], and .value
    logits                   float32[batch_size, sequence_length, vocab]
    present.N.key            [batch_size, kv_heads, total_sequence_length, head_size], and .value

total_sequence_length is past_sequence_length + sequence_length. docs/interchange.md says more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from mxspec.compile.interchange.lowering.nodes import Nodes
from mxspec.formats.manifest import ModelEntry

_BATCH, _TOKENS, _PAST, _TOTAL = "batch_size", "sequence_length", "past_sequence_length", "total_sequence_length"
_OF_SEQUENCES = ("slots", "past_lengths", "new_lengths", "logits_to_keep")  # inputs of the graph contract to be removed


def take_inputs(model: ir.Model, entry: ModelEntry) -> dict[str, ir.Value]:
    """Give the inputs their names and shapes, add the attention mask; by name. Run `drop_inputs` at the end."""
    given = {str(value.name): value for value in model.graph.inputs}
    ids, positions = given["input_ids"], given["position_ids"]
    ids.shape, positions.shape = ir.Shape([_BATCH, _TOKENS]), ir.Shape([_BATCH, _TOKENS])
    mask = ir.Value(name="attention_mask", shape=ir.Shape([_BATCH, _TOTAL]), type=ir.TensorType(ir.DataType.INT64))
    model.graph.inputs.insert(1, mask)
    pasts = [value for name, value in given.items() if name.startswith("past_") and name not in _OF_SEQUENCES]
    for past, name in zip(pasts, cache_names(entry), strict=True):
        past.name, past.shape = f"past_key_values.{name}", _cache(entry, _PAST)
    return {str(value.name): value for value in model.graph.inputs}


def keep_every_token(model: ir.Model) -> None:
    """Let the LM head read all tokens: remove the Squeeze and Gather by logits_to_keep before it."""
    for gather in [node for node in model.graph if node.op_type == "Gather"]:
        if gather.inputs[1] is not None and gather.inputs[1].name == "logits_to_keep":
            squeeze = gather.inputs[0].producer() if gather.inputs[0] is not None else None
            assert squeeze is not None, "the head of every exported graph reads its tokens so"
            assert squeeze.op_type == "Squeeze"
            assert squeeze.inputs[0] is not None
            gather.outputs[0].replace_all_uses_with(squeeze.inputs[0])


def make_masks(
    model: ir.Model, inputs: Mapping[str, ir.Value], windows: Iterable[int], *, grouped: bool
) -> dict[int, ir.Value]:
    """The keys that each token attends to, for each window (0: no window), computed at the start of the graph.

    bool[batch, 1, tokens, keys], with another axis of one entry after the first if queries are `grouped`.
    """
    nodes = Nodes()
    zero, one = nodes.op("Constant", [], {"value_int": 0}), nodes.op("Constant", [], {"value_int": 1})
    mask = inputs["attention_mask"]
    total = nodes.op("Squeeze", [nodes.op("Shape", [mask], {"start": 1, "end": 2})])
    tokens = nodes.op("Squeeze", [nodes.op("Shape", [inputs["input_ids"]], {"start": 1, "end": 2})])
    past = nodes.op("Sub", [total, tokens])
    keys = nodes.op("Range", [zero, total, one])
    queries = nodes.unsqueeze(nodes.op("Range", [past, total, one]), 1)
    causal = nodes.op("LessOrEqual", [keys, queries])
    real = nodes.unsqueeze(nodes.cast(mask, ir.DataType.BOOL), *((1, 2, 3) if grouped else (1, 2)))
    masks = {}
    for window in sorted(set(windows)):
        seen = causal
        if window:
            first = nodes.op("Sub", [queries, nodes.op("Constant", [], {"value_int": window})])
            seen = nodes.op("And", [causal, nodes.op("Greater", [keys, first])])
        masks[window] = nodes.op("And", [seen, real])
    model.graph.insert_before(model.graph[0], nodes.nodes)
    return masks


def give_outputs(model: ir.Model, entry: ModelEntry) -> None:
    """Give the outputs their names and shapes, and remove the graph contract's unused inputs."""
    dtype = ir.TensorType(cache_type(entry))
    logits, *presents = model.graph.outputs
    logits.name, logits.shape = "logits", ir.Shape([_BATCH, _TOKENS, entry.vocab_size])
    logits.type = ir.TensorType(ir.DataType.FLOAT)
    for present, name in zip(presents, cache_names(entry), strict=True):
        present.name, present.shape, present.type = f"present.{name}", _cache(entry, _TOTAL), dtype
    for value in [value for value in model.graph.inputs if value.name in _OF_SEQUENCES]:
        assert not value.uses(), value.name
        model.graph.inputs.remove(value)


def fix_shapes(model: ir.Model, texts: int, tokens: int, context_length: int) -> ir.Model:
    """A copy for calls of `tokens` tokens of each text, after caches that fill up the context with padding."""
    sizes = {_BATCH: texts, _TOKENS: tokens, _PAST: context_length - tokens, _TOTAL: context_length}
    fixed = model.clone()
    for value in (*fixed.graph.inputs, *fixed.graph.outputs):
        assert value.shape is not None
        value.shape = ir.Shape([size if isinstance(size, int) else sizes[str(size.value)] for size in value.shape])
    return fixed


def cache_names(entry: ModelEntry) -> list[str]:
    """The names of the caches, in the order of the graph's inputs and outputs."""
    return [f"{layer}.{what}" for layer in range(entry.layers) for what in ("key", "value")]


def cache_type(entry: ModelEntry) -> ir.DataType:
    """The type of keys and values: float32 as in the bundle's caches, else float16."""
    return ir.DataType.FLOAT if entry.caches == "float32" else ir.DataType.FLOAT16


def _cache(entry: ModelEntry, length: str) -> ir.Shape:
    return ir.Shape([_BATCH, entry.kv_heads, length, entry.head_size])
