"""The graph of a draft that reads hidden states: in each call the target's, or its own of earlier calls."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.export import Dim

from mxspec.compile.heads.head import StatesHead
from mxspec.compile.trace.attention import CallInputs, Sequences
from mxspec.compile.trace.decoder import DecoderInterface
from mxspec.compile.trace.interface import Caches, CacheShape

STATES, OWN_STATES = 17, 19  # rows of an example call; SEQUENCES and others are in interface.py


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
        width = own_states.shape[1]
        g = torch.onnx.ops.symbolic(
            "Concat",
            (self.model.project(states), own_states),
            {"axis": 0},
            dtype=torch.float32,
            shape=(input_ids.shape[1], width),
        )
        outputs = self.model(input_ids, g[None], position_ids, self._call)
        kept = torch.onnx.ops.symbolic(
            "Gather",
            (outputs.states.squeeze(0), logits_to_keep),
            {"axis": 0},
            dtype=torch.float32,
            shape=(logits_to_keep.shape[0], width),
        )
        return outputs.logits, kept, self._call.presents()

    def arguments(self) -> tuple[object, ...]:
        """Of an example call."""
        config = self.model.config
        states, own = torch.zeros(STATES, config.states_size), torch.zeros(OWN_STATES, config.hidden_size)
        return (*super().arguments(), states, own)

    def dimensions(self) -> tuple[object, ...]:
        """The symbolic dimensions of the arguments, by their axes."""
        return (*super().dimensions(), {0: Dim("target_tokens")}, {0: Dim("own_tokens")})
