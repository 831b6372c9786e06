"""The graph of an encoder, which reads whole sources and writes their keys and values for every decoder layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import EncoderDecoderCache, PreTrainedModel

from mxspec.compile.graph.operators import ENCODER_ATTENTION, STORE_KEY_VALUE
from mxspec.compile.trace.attention import (
    PassThroughCache,
    TracedCall,
    emit,
    first_distance,
    require_plain,
    scaling_of,
    up_to_the_last,
)
from mxspec.compile.trace.interface import SEQUENCES, SOURCE_CAPACITY, TOKENS, Caches, CacheShape, GraphInterface
from mxspec.formats.errors import UnsupportedModelError

_INPUTS = ("input_ids", "position_ids", "slots", "new_lengths")


class SourceCall(TracedCall):
    """The tensors of an encoder's call: its attention, and the cache for the decoder layers' keys and values.

    The decoder is traced as well, only for its layers' keys and values of the source.
    """

    def __init__(self) -> None:
        super().__init__()
        self._slots: Tensor | None = None
        self._lengths: Tensor | None = None
        self._past: Sequence[tuple[Tensor, Tensor]] = []
        self._present: dict[int, tuple[Tensor, Tensor]] = {}
        self._encoding = True

    def begin(self, slots: Tensor, lengths: Tensor, past: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Take the tensors of one traced call."""
        self._slots, self._lengths, self._past, self._present = slots, lengths, past, {}

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """In this block the decoder attends, with an empty result, because it is unused."""
        self._encoding = False
        try:
            yield
        finally:
            self._encoding = True

    def presents(self) -> list[tuple[Tensor, Tensor]]:
        """The written keys and values of the source for each layer of the decoder."""
        missing = [layer for layer in range(len(self._past)) if layer not in self._present]
        if missing:
            raise UnsupportedModelError(f"layers {missing} of the decoder never attended to the source")
        return [self._present[layer] for layer in range(len(self._past))]

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Emit mxspec::StoreKeyValue of the keys and values float32[1, kv_heads, tokens, head_size] of a source."""
        past_key, past_value = self._past[layer_idx]
        if layer_idx in self._present:
            raise UnsupportedModelError(f"layer {layer_idx} of the decoder attends to the source twice in a call")
        present_key, present_value = torch.onnx.ops.symbolic_multi_out(
            STORE_KEY_VALUE.qualified,
            (key.transpose(1, 2), value.transpose(1, 2), past_key, past_value, self._slots, self._lengths),
            {},
            dtypes=(past_key.dtype, past_value.dtype),
            shapes=(past_key.shape, past_value.shape),
            version=1,
        )
        self._present[layer_idx] = (present_key, present_value)
        return key, value

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        position_bias: Tensor | None = None,
        **extra: Any,
    ) -> tuple[Tensor, None]:
        """Emit one attention of an encoder's layer."""
        if not self._encoding:
            return query.transpose(1, 2), None
        require_plain(module, query, value, attention_mask, extra)
        attributes = scaling_of(query, scaling, softcap) | first_distance(module, position_bias)
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        inputs = query, key, value, self._lengths, *up_to_the_last(position_bias)
        return emit(ENCODER_ATTENTION, inputs, attributes, query.shape), None


class _NothingStored(EncoderDecoderCache):  # type: ignore[misc]
    """The pair of caches of a decoder that has not read its source yet."""

    def __init__(self, call: SourceCall) -> None:
        self.self_attention_cache = PassThroughCache()
        self.cross_attention_cache = call
        self.is_updated: dict[int, bool] = {}


class EncoderInterface(GraphInterface):
    """Keys and values of the sources, written into their slots."""

    def __init__(self, model: PreTrainedModel, call: SourceCall, shape: CacheShape) -> None:
        super().__init__(model, shape, [*_INPUTS, *shape.names("cross")], shape.names("present_cross"))
        self._call = call

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, slots: Tensor, new_lengths: Tensor, cross: Caches
    ) -> Caches:
        self._call.begin(slots, new_lengths, cross)
        self._call.positions.ids = position_ids
        encoder, decoder = self.model.get_encoder(), self.model.get_decoder()
        source = encoder(input_ids=input_ids, return_dict=True).last_hidden_state
        with self._call.decoding():
            decoder(
                input_ids=input_ids,
                encoder_hidden_states=source,
                past_key_values=_NothingStored(self._call),
                use_cache=True,
                return_dict=True,
            )
        return self._call.presents()

    def arguments(self) -> tuple[object, ...]:
        return (
            *(torch.zeros(1, TOKENS, dtype=torch.int64) for _ in range(2)),
            *(torch.zeros(SEQUENCES, dtype=torch.int32) for _ in range(2)),
            self.caches.examples(SOURCE_CAPACITY),
        )

    def dimensions(self) -> tuple[object, ...]:
        names = ("tokens", "sequences", "slots", "encoder_capacity")
        tokens, sequences, slots, capacity = (torch.export.Dim(name) for name in names)
        ids, lengths, cache = {1: tokens}, {0: sequences}, {0: slots, 2: capacity}
        return (ids, ids, lengths, lengths, [(cache, cache) for _ in range(self.caches.layers)])
