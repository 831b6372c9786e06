"""The attention function and the cache that transformers gets while its model is traced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mxspec.compile.graph.operators import ATTENTION, CROSS_ATTENTION, Operator
from mxspec.compile.trace.skeleton import ATTENTION_NAME
from mxspec.formats.errors import UnsupportedModelError

# Further arguments that transformers may pass to an attention function, without effect here.
_HARMLESS = {
    *("position_ids", "cache_position", "is_causal", "past_key_values"),
    *("use_cache", "output_attentions", "output_router_logits"),
}
Attributes = dict[str, Any]  # of a node


@dataclass(frozen=True, slots=True)
class Sequences:
    """The sequences of a call, whose tokens follow one another; int32[sequences] each."""

    slots: Tensor
    past_lengths: Tensor
    new_lengths: Tensor


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of a call: keys and values of each layer, and their number for each sequence, int32[sequences]."""

    caches: Sequence[tuple[Tensor, Tensor]]
    lengths: Tensor


class Positions:
    """The positions of the traced call's tokens in their texts, int64[1, tokens], however a model would count them."""

    def __init__(self) -> None:
        self.ids: Tensor | None = None


class TracedCall(ABC):
    """The tensors of a traced call, in the role of transformers' attention function."""

    def __init__(self) -> None:
        self.positions = Positions()

    @contextmanager
    def registered(self) -> Iterator[None]:
        """In this block, transformers knows `attend` as ATTENTION_NAME."""
        ALL_ATTENTION_FUNCTIONS[ATTENTION_NAME] = self.attend
        try:
            yield
        finally:
            del ALL_ATTENTION_FUNCTIONS[ATTENTION_NAME]

    @abstractmethod
    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **given: Any
    ) -> tuple[Tensor, None]:
        """Attention of float32[1, heads, tokens, head_size] each; the result is [1, tokens, heads, head_size]."""


class PassThroughCache:
    """The part of transformers' Cache that models call; it keeps nothing, and returns new keys and values."""

    is_compileable = False

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return key, value

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """The size of a mask that is never read."""
        return query_length, 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions come from the graph's inputs, never from here."""
        return 0


class CallInputs(TracedCall, PassThroughCache):
    """The tensors of a decoder's call, which serve transformers as a cache and as an attention function.

    `attend` emits mxspec::Attention, which appends keys and values in place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.logits_to_keep: Tensor | None = None  # int64[rows], read by the LM head
        self._past: list[tuple[Tensor, Tensor]] = []
        self._present: dict[int, tuple[Tensor, Tensor]] = {}
        self._sequences: Sequences | None = None
        self._sources: Sources | None = None

    def begin(
        self,
        sequences: Sequences,
        logits_to_keep: Tensor,
        past: Sequence[tuple[Tensor, Tensor]],
        sources: Sources | None = None,
    ) -> None:
        """Take the tensors of one traced call, with `sources` if the decoder has an encoder."""
        self.logits_to_keep = logits_to_keep
        self._sequences = sequences
        self._past, self._present = list(past), {}
        self._sources = sources

    def presents(self) -> list[tuple[Tensor, Tensor]]:
        """The layers' caches after the call, in layer order."""
        missing = [layer for layer in range(len(self._past)) if layer not in self._present]
        if missing:
            raise UnsupportedModelError(f"layers {missing} never reached the attention function: not a plain decoder")
        return [self._present[layer] for layer in range(len(self._past))]

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        slopes: Tensor | None = None,
        position_bias: Tensor | None = None,
        **extra: Any,
    ) -> tuple[Tensor, None]:
        """Emit one attention.

        `s_aux` is transformers' name for sinks; ALiBi's `slopes` and a `position_bias` by distance (modules.py) come
        from a family's patch. If the keys are a source's, this is a cross-attention.
        """
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        attributes = scaling_of(query, scaling, softcap)
        if self._sources is not None and key is self._sources.caches[layer][0]:
            unread = {"s_aux": s_aux, "position_bias": position_bias, "sliding_window": sliding_window}
            require_plain(module, query, value, attention_mask, extra | unread)
            return self._attend_to_source(query, layer, attributes), None
        require_plain(module, query, value, attention_mask, extra)
        name = type(module).__name__
        if key.shape[1] != self._past[layer][0].shape[1]:
            said = self._past[layer][0].shape[1]
            raise UnsupportedModelError(f"{name}: has {key.shape[1]} heads of keys, where its config.json says {said}")
        if layer in self._present:
            raise UnsupportedModelError(f"{name}: layer {layer} attends twice in a call")
        assert self._sequences is not None
        output, present_key, present_value = torch.onnx.ops.symbolic_multi_out(
            ATTENTION.qualified,
            (
                query.transpose(1, 2),
                key.transpose(1, 2),
                value.transpose(1, 2),
                *self._past[layer],
                self._sequences.slots,
                self._sequences.past_lengths,
                self._sequences.new_lengths,
                *up_to_the_last(slopes, s_aux, position_bias),
            ),
            attributes | {"window": int(sliding_window or 0)} | first_distance(module, position_bias),
            dtypes=(torch.float32, self._past[layer][0].dtype, self._past[layer][1].dtype),
            shapes=(query.transpose(1, 2).shape, self._past[layer][0].shape, self._past[layer][1].shape),
            version=1,
        )
        self._present[layer] = (present_key, present_value)
        return output, None

    def _attend_to_source(self, query: Tensor, layer: int, attributes: Attributes) -> Tensor:
        assert self._sequences is not None
        assert self._sources is not None
        query, calls = query.transpose(1, 2), self._sequences
        caches = *self._sources.caches[layer], calls.slots, self._sources.lengths, calls.new_lengths
        return emit(CROSS_ATTENTION, (query, *caches), attributes, query.shape)


class WithSources(EncoderDecoderCache):  # type: ignore[misc]
    """A call as the pair of caches of a decoder with an encoder; it already holds the sources' keys and values.

    transformers then passes these tensors to the attention function, instead of computing keys and values.
    """

    def __init__(self, call: CallInputs, sources: Sources) -> None:
        self.self_attention_cache = call
        layers = [SimpleNamespace(keys=keys, values=values) for keys, values in sources.caches]
        self.cross_attention_cache = SimpleNamespace(layers=layers)
        self.is_updated = dict.fromkeys(range(len(layers)), True)


def scaling_of(query: Tensor, scaling: float | None, softcap: float | None) -> Attributes:
    """The attributes for scaling scores, by default with 1 / √(size of a head)."""
    return {
        "scale": float(query.shape[-1] ** -0.5 if scaling is None else scaling),
        "softcap": float(softcap or 0.0),
    }


def require_plain(module: nn.Module, query: Tensor, value: Tensor, mask: Tensor | None, extra: dict[str, Any]) -> None:
    """Raise UnsupportedModelError for attention that the operators do not support."""
    name = type(module).__name__
    unknown = sorted(k for k, v in extra.items() if v is not None and k not in _HARMLESS)
    if mask is not None or unknown:
        what = ", ".join(unknown) or "a mask of its own"
        raise UnsupportedModelError(f"{name} gives its attention {what}: mxspec::Attention has no input for it")
    if query.shape[-1] != value.shape[-1] or query.shape[-1] % 2:
        got = f"keys of {query.shape[-1]}, values of {value.shape[-1]}"
        raise UnsupportedModelError(f"{name}: head sizes must be equal and a multiple of 2, got {got}")


def first_distance(module: nn.Module, bias: Tensor | None) -> Attributes:
    """The attribute for a bias by distance, which a family's patch stored in the module."""
    if bias is None:
        return {}
    first = getattr(module, "first_distance", None)
    if first is None:
        raise UnsupportedModelError(f"{type(module).__name__} gives its attention a position_bias that is not known")
    return {"first_distance": int(first)}


def up_to_the_last(*optional: Tensor | None) -> tuple[Tensor | None, ...]:
    """Optional inputs of a node, without missing ones at the end."""
    given = [index for index, value in enumerate(optional) if value is not None]
    return optional[: given[-1] + 1] if given else ()


def emit(operator: Operator, inputs: Sequence[Tensor | None], attributes: Attributes, shape: Sequence[int]) -> Tensor:
    """A node of the native library, whose output is float32 of this shape."""
    return torch.onnx.ops.symbolic(operator.qualified, inputs, attributes, dtype=torch.float32, shape=shape, version=1)
