"""A draft in torch that reads hidden states beside the tokens: what all kinds share.

Beside token i + 1 it reads one vector g, made of the target's states of token i, and says what follows. It gives the g
of the next step, where the target has not read the token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class HeadConfig:
    """Mixed into the configuration of such a draft, beside the settings of its one layer.

    `hidden_state_outputs` are the places in the target whose states it reads (trace/decoder.py), `hidden_state_count`
    of them; None until the target is known. `hidden_size` is the width of its own states.
    """

    hidden_size: int
    hidden_state_outputs: list[int] | None
    hidden_state_count: int

    @property
    def states_width(self) -> int:
        """Values of a token's state at one place."""
        raise NotImplementedError

    @property
    def states_size(self) -> int:
        """Values of a token's states at all places."""
        return self.hidden_state_count * self.states_width


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """`logits` float32[1, tokens, rows], and `states` float32[1, tokens, hidden]: the g of the next step."""

    logits: Tensor
    states: Tensor


class StatesHead:
    """Mixed into a model of transformers; `project` and `forward` are the two parts of a step.

    The one of its `layers` takes the embedded tokens and g, both float32[1, tokens, hidden]. With `goes_on_normed` the
    next g is what its last norm gives, else what that takes.
    """

    config: Any  # a HeadConfig
    embed_tokens: nn.Embedding
    layers: nn.ModuleList
    norm: nn.Module
    rotary_emb: nn.Module
    lm_head: nn.Module
    goes_on_normed: bool
    __call__: Callable[..., HeadOutput]

    def project(self, states: Tensor) -> Tensor:
        """The g of tokens that the target has read, float32[tokens, hidden], from its states float32[tokens, size]."""
        raise NotImplementedError

    def forward(
        self,
        input_ids: Tensor,
        g: Tensor,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        **_: Any,
    ) -> HeadOutput:
        """What follows each of the tokens int64[1, tokens], read beside g float32[1, tokens, hidden].

        Without a cache every token sees those before it. With one its own attention does what it does, or tokens see
        what `attention_mask` float32[tokens, cached] adds nothing to.
        """
        count = input_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(count)[None]
        mask = attention_mask
        if past_key_values is None:
            mask = torch.full((count, count), torch.finfo(g.dtype).min).triu(1)
        embedded = self.embed_tokens(input_ids)
        x = self.layers[0](
            embedded,
            g,
            position_embeddings=self.rotary_emb(embedded, position_ids),
            attention_mask=None if mask is None else mask[None, None],
            past_key_values=past_key_values,
        )
        normed = self.norm(x)
        return HeadOutput(self.lm_head(normed), normed if self.goes_on_normed else x)
