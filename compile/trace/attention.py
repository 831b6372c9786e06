"""The attention function and the cache that transformers is handed while its model is traced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mxspec.compile.operators import ATTENTION
from mxspec.compile.trace.skeleton import ATTENTION_NAME
from mxspec.formats.errors import UnsupportedModelError

# What transformers may hand an attention function besides what `attend` reads, and that changes nothing here.
_HARMLESS = {"position_ids", "use_cache", "output_attentions", "cache_position", "is_causal", "past_key_values"}


@dataclass(frozen=True, slots=True)
class Sequences:
    """Whose the tokens of a call are, which stand one sequence after another; int32[sequences] each."""

    slots: Tensor
    past_lengths: Tensor
    new_lengths: Tensor


class CallInputs:
    """The tensors of the traced call, in the two roles that transformers wants: a cache and an attention function.

    `update` hands the new keys and values back, `attend` emits mxspec::Attention, which appends them in place.
    """

    is_compileable = False

    def __init__(self) -> None:
        self.logits_to_keep: Tensor | None = None  # int64[rows], read by the LM head
        self._past: list[tuple[Tensor, Tensor]] = []
        self._present: dict[int, tuple[Tensor, Tensor]] = {}
        self._sequences: Sequences | None = None

    @contextmanager
    def registered(self) -> Iterator[None]:
        """While it lasts transformers knows `attend` as ATTENTION_NAME."""
        ALL_ATTENTION_FUNCTIONS[ATTENTION_NAME] = self.attend
        try:
            yield
        finally:
            del ALL_ATTENTION_FUNCTIONS[ATTENTION_NAME]

    def begin(self, sequences: Sequences, logits_to_keep: Tensor, past: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Take the tensors of one traced call."""
        self.logits_to_keep = logits_to_keep
        self._sequences = sequences
        self._past, self._present = list(past), {}

    def presents(self) -> list[tuple[Tensor, Tensor]]:
        """The layers' caches after the call, in layer order."""
        missing = [layer for layer in range(len(self._past)) if layer not in self._present]
        if missing:
            raise UnsupportedModelError(f"layers {missing} never reached the attention function: not a plain decoder")
        return [self._present[layer] for layer in range(len(self._past))]

    # --- the part of transformers' Cache that models call ---

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Nothing is appended here: the op does it."""
        return key, value

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Of a mask that nothing reads."""
        return query_length, 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions come from the graph's inputs, never from here."""
        return 0

    # --- transformers' attention function ---

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
        **extra: Any,
    ) -> tuple[Tensor, None]:
        """Emit one attention: float32[1, heads, tokens, head_size] each → [1, tokens, heads, head_size].

        `s_aux` are sinks, by transformers' name for them; `slopes` of ALiBi come from a family's patch.
        """
        name = type(module).__name__
        unknown = sorted(k for k, v in extra.items() if v is not None and k not in _HARMLESS)
        if attention_mask is not None or unknown:
            what = ", ".join(unknown) or "a mask of its own"
            raise UnsupportedModelError(f"{name} gives its attention {what}: mxspec::Attention has no input for it")
        if query.shape[-1] != value.shape[-1] or query.shape[-1] % 2:
            got = f"keys of {query.shape[-1]}, values of {value.shape[-1]}"
            raise UnsupportedModelError(f"{name}: head sizes must be equal and a multiple of 2, got {got}")
        layer = int(module.layer_idx)  # type: ignore[arg-type]
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
                *_up_to_the_last(slopes, s_aux),
            ),
            {
                "scale": float(query.shape[-1] ** -0.5 if scaling is None else scaling),
                "softcap": float(softcap or 0.0),
                "window": int(sliding_window or 0),
            },
            dtypes=(torch.float32, self._past[layer][0].dtype, self._past[layer][1].dtype),
            shapes=(query.transpose(1, 2).shape, self._past[layer][0].shape, self._past[layer][1].shape),
            version=1,
        )
        self._present[layer] = (present_key, present_value)
        return output, None


def _up_to_the_last(*optional: Tensor | None) -> tuple[Tensor | None, ...]:
    """Optional inputs of a node, without those that are absent at its end."""
    given = [index for index, value in enumerate(optional) if value is not None]
    return optional[: given[-1] + 1] if given else ()
