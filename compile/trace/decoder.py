"""The graphs of decoders, which read the new tokens of many texts and append to their caches.

A target may also give hidden states, and a draft head reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from mxspec.compile.heads.head import StatesHead
from mxspec.compile.trace.attention import CallInputs, Sequences, Sources, WithSources
from mxspec.compile.trace.interface import (
    ROWS,
    SEQUENCES,
    SOURCE_CAPACITY,
    TOKENS,
    Caches,
    CacheShape,
    GraphInterface,
)
from mxspec.compile.trace.packed import rows_at
from mxspec.compile.trace.skeleton import final_norm, layers_of

_INPUTS = ("input_ids", "position_ids", "slots", "past_lengths", "new_lengths", "logits_to_keep")
STATES, OWN_STATES = 17, 19  # rows of an example call; SEQUENCES and others are in interface.py


class HiddenStates:
    """Takes the hidden states at some places of a model while the model runs.

    Places are numbered as what the states enter: the n decoder layers from 0 on, then the final norm, n, and what
    follows it, n + 1, the LM head.
    """

    def __init__(self, model: PreTrainedModel, places: Sequence[int]) -> None:
        """Raises UnsupportedModelError for a model whose layers, or whose final norm, are not found."""
        self.places = tuple(places)
        self._modules = layers_of(model, model.config) if places else []
        self._norm = len(self._modules)
        if places and max(places) >= self._norm:
            self._modules = [*self._modules, final_norm(model, model.config)]
        self._found: dict[int, Tensor] = {}

    @contextmanager
    def taking(self) -> Iterator[None]:
        """In this block, each call of the model leaves its states here."""
        hooks = [self._hook(place) for place in self.places]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def states(self) -> Tensor:
        """Those of the last call, one place's after the other: float32[tokens, places * hidden_size]."""
        return torch.cat([self._found[place] for place in self.places], dim=-1).squeeze(0)

    def _hook(self, place: int) -> RemovableHandle:
        if place > self._norm:
            return self._modules[self._norm].register_forward_hook(partial(self._take_given, place))
        return self._modules[place].register_forward_pre_hook(partial(self._take, place), with_kwargs=True)

    def _take(self, place: int, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._found[place] = arguments[0] if arguments else named["hidden_states"]

    def _take_given(self, place: int, module: nn.Module, arguments: tuple[Any, ...], given: Tensor) -> None:
        self._found[place] = given


class DecoderInterface(GraphInterface):
    """The logits of the requested tokens, the hidden states at some places, and the caches after the call."""

    def __init__(
        self,
        model: PreTrainedModel,
        call: CallInputs,
        shape: CacheShape,
        hidden_state_outputs: Sequence[int] = (),
        *,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
    ) -> None:
        given = ["states"] if hidden_state_outputs else []
        takes, gives = [*_INPUTS, *shape.names("past"), *inputs], ["logits", *given, *outputs, *shape.names("present")]
        super().__init__(model, shape, takes, gives)
        self._call = call
        self.hidden_states = HiddenStates(model, hidden_state_outputs)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        slots: Tensor,
        past_lengths: Tensor,
        new_lengths: Tensor,
        logits_to_keep: Tensor,
        past: Caches,
    ) -> tuple[object, ...]:
        self._call.begin(Sequences(slots, past_lengths, new_lengths), logits_to_keep, past)
        self._call.positions.ids = position_ids
        with self.hidden_states.taking():
            outputs = self.model(
                input_ids=input_ids,
                position_ids=position_ids,
                past_key_values=self._call,
                use_cache=True,
                return_dict=True,
            )
        states = [self.hidden_states.states] if self.hidden_states.places else []
        return outputs.logits, *states, self._call.presents()

    def arguments(self) -> tuple[object, ...]:
        return (
            *(torch.zeros(1, TOKENS, dtype=torch.int64) for _ in range(2)),
            *(torch.zeros(SEQUENCES, dtype=torch.int32) for _ in range(3)),
            torch.zeros(ROWS, dtype=torch.int64),
            self.caches.examples(),
        )

    def dimensions(self) -> tuple[object, ...]:
        ids, lengths, rows, slots = {1: Dim("tokens")}, {0: Dim("sequences")}, {0: Dim("rows")}, Dim("slots")
        return (ids, ids, lengths, lengths, lengths, rows, self._of_caches({0: slots, 2: Dim("capacity")}))

    def _of_caches(self, dimensions: dict[int, Dim]) -> list[tuple[dict[int, Dim], dict[int, Dim]]]:
        return [(dimensions, dimensions) for _ in range(self.caches.layers)]


class SourceDecoderInterface(DecoderInterface):
    """A decoder with an encoder, which wrote the keys and values of the sources."""

    def __init__(self, model: PreTrainedModel, call: CallInputs, shape: CacheShape) -> None:
        super().__init__(model, call, shape, inputs=["encoder_lengths", *shape.names("cross")])

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        slots: Tensor,
        past_lengths: Tensor,
        new_lengths: Tensor,
        logits_to_keep: Tensor,
        past: Caches,
        encoder_lengths: Tensor,
        cross: Caches,
    ) -> tuple[object, ...]:
        sources = Sources(cross, encoder_lengths)
        self._call.begin(Sequences(slots, past_lengths, new_lengths), logits_to_keep, past, sources)
        self._call.positions.ids = position_ids
        # Stands for the encoder's output, whose keys and values are already stored.
        unread = torch.zeros(1, 1, self.model.config.hidden_size)
        outputs = self.model(
            decoder_input_ids=input_ids,
            encoder_outputs=BaseModelOutput(last_hidden_state=unread),
            past_key_values=WithSources(self._call, sources),
            use_cache=True,
            return_dict=True,
        )
        return outputs.logits, self._call.presents()

    def arguments(self) -> tuple[object, ...]:
        lengths = torch.zeros(SEQUENCES, dtype=torch.int32)
        return (*super().arguments(), lengths, self.caches.examples(SOURCE_CAPACITY))

    def dimensions(self) -> tuple[object, ...]:
        cross = self._of_caches({0: Dim("slots"), 2: Dim("encoder_capacity")})
        return (*super().dimensions(), {0: Dim("sequences")}, cross)


class HeadInterface(DecoderInterface):
    """The logits of the requested tokens, and the states with which the draft goes on after them.

    Inputs beside a decoder's: `states` float32[tokens, size] of the target and `own_states` float32[tokens, hidden],
    one of them with no rows; output `next_states` float32[rows, hidden].
    """

    model: StatesHead

    def __init__(self, model: StatesHead, call: CallInputs, shape: CacheShape) -> None:
        super().__init__(model, call, shape, inputs=["states", "own_states"], outputs=["next_states"])

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        slots: Tensor,
        past_lengths: Tensor,
        new_lengths: Tensor,
        logits_to_keep: Tensor,
        past: Caches,
        states: Tensor,
        own_states: Tensor,
    ) -> tuple[object, ...]:
        self._call.begin(Sequences(slots, past_lengths, new_lengths), logits_to_keep, past)
        g = torch.onnx.ops.symbolic(
            "Concat",
            (self.model.project(states), own_states),
            {"axis": 0},
            dtype=torch.float32,
            shape=(input_ids.shape[1], own_states.shape[1]),
        )
        outputs = self.model(input_ids, g[None], position_ids, self._call)
        return outputs.logits, rows_at(outputs.states, logits_to_keep), self._call.presents()

    def arguments(self) -> tuple[object, ...]:
        config = self.model.config
        states, own = torch.zeros(STATES, config.states_size), torch.zeros(OWN_STATES, config.hidden_size)
        return (*super().arguments(), states, own)

    def dimensions(self) -> tuple[object, ...]:
        return (*super().dimensions(), {0: Dim("target_tokens")}, {0: Dim("own_tokens")})
