"""The graph of a decoder, which reads the new tokens of many texts and appends to their caches."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mxspec.compile.trace.attention import CallInputs, Sequences
from mxspec.compile.trace.interface import ROWS, SEQUENCES, TOKENS, Caches, CacheShape, GraphInterface

_INPUTS = ("input_ids", "position_ids", "slots", "past_lengths", "new_lengths", "logits_to_keep")


class DecoderInterface(GraphInterface):
    """Logits of the tokens that are wanted, and the caches after the call."""

    def __init__(self, model: PreTrainedModel, call: CallInputs, shape: CacheShape) -> None:
        super().__init__(model, [*_INPUTS, *shape.names("past")], ["logits", *shape.names("present")])
        self._call = call
        self._shape = shape

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        slots: Tensor,
        past_lengths: Tensor,
        new_lengths: Tensor,
        logits_to_keep: Tensor,
        past: Caches,
    ) -> tuple[Tensor, Caches]:
        self._call.begin(Sequences(slots, past_lengths, new_lengths), logits_to_keep, past)
        outputs = self.model(
            input_ids=input_ids,
            position_ids=position_ids,
            past_key_values=self._call,
            use_cache=True,
            return_dict=True,
        )
        return outputs.logits, self._call.presents()

    def arguments(self) -> tuple[object, ...]:
        """Of an example call."""
        return (
            *(torch.zeros(1, TOKENS, dtype=torch.int64) for _ in range(2)),
            *(torch.zeros(SEQUENCES, dtype=torch.int32) for _ in range(3)),
            torch.zeros(ROWS, dtype=torch.int64),
            self._shape.examples(),
        )

    def dimensions(self) -> tuple[object, ...]:
        """The symbolic dimensions of the arguments, by their axes."""
        names = ("tokens", "sequences", "rows", "slots", "capacity")
        tokens, sequences, rows, slots, capacity = (torch.export.Dim(name) for name in names)
        ids, lengths, cache = {1: tokens}, {0: sequences}, {0: slots, 2: capacity}
        return (ids, ids, lengths, lengths, lengths, {0: rows}, [(cache, cache) for _ in range(self._shape.layers)])
