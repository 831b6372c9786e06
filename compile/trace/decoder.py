"""The graph of a decoder, which reads the new tokens of many texts and appends to their caches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.export import Dim
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

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
from mxspec.compile.trace.taps import Taps

_INPUTS = ("input_ids", "position_ids", "slots", "past_lengths", "new_lengths", "logits_to_keep")


class DecoderInterface(GraphInterface):
    """The logits of the requested tokens, the states at the places `taps` (taps.py), and the caches after the call."""

    def __init__(
        self,
        model: PreTrainedModel,
        call: CallInputs,
        shape: CacheShape,
        taps: Sequence[int] = (),
        *,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
    ) -> None:
        given = ["states"] if taps else []
        takes, gives = [*_INPUTS, *shape.names("past"), *inputs], ["logits", *given, *outputs, *shape.names("present")]
        super().__init__(model, shape, takes, gives)
        self._call = call
        self.taps = Taps(model, taps)

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
        with self.taps.taking():
            outputs = self.model(
                input_ids=input_ids,
                position_ids=position_ids,
                past_key_values=self._call,
                use_cache=True,
                return_dict=True,
            )
        states = [self.taps.states] if self.taps.places else []
        return outputs.logits, *states, self._call.presents()

    def arguments(self) -> tuple[object, ...]:
        """Of an example call."""
        return (
            *(torch.zeros(1, TOKENS, dtype=torch.int64) for _ in range(2)),
            *(torch.zeros(SEQUENCES, dtype=torch.int32) for _ in range(3)),
            torch.zeros(ROWS, dtype=torch.int64),
            self.caches.examples(),
        )

    def dimensions(self) -> tuple[object, ...]:
        """The symbolic dimensions of the arguments, by their axes."""
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
        """Of an example call."""
        lengths = torch.zeros(SEQUENCES, dtype=torch.int32)
        return (*super().arguments(), lengths, self.caches.examples(SOURCE_CAPACITY))

    def dimensions(self) -> tuple[object, ...]:
        """The symbolic dimensions of the arguments, by their axes."""
        cross = self._of_caches({0: Dim("slots"), 2: Dim("encoder_capacity")})
        return (*super().dimensions(), {0: Dim("sequences")}, cross)
