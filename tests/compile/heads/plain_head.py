"""An EAGLE-3 head in plain torch, by the paper (Li et al. 2025) and the two published forms, without transformers.

It recomputes everything for each step, in float64.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

IDS = "eagle_aux_hidden_state_layer_ids"

Part = Callable[[str, Tensor], Tensor]  # a named norm or product


def attention(x: Tensor, layer: Mapping[str, Any], linear: Part, norm: Part) -> Tensor:
    """Causal attention of a decoder layer with these settings, whose heads are normed and rotated, of rows `x`."""
    heads, groups, count = layer["num_attention_heads"], layer["num_key_value_heads"], len(x)
    size = layer.get("head_dim") or layer["hidden_size"] // heads
    q, k, v = (linear(f"self_attn.{name}_proj", x).view(count, -1, size) for name in "qkv")
    q, k = norm("self_attn.q_norm", q), norm("self_attn.k_norm", k)
    turned = int(size * layer.get("partial_rotary_factor", 1))
    q, k = (torch.cat([_rotated(y[..., :turned], layer["rope_theta"]), y[..., turned:]], -1) for y in (q, k))
    k, v = (y.repeat_interleave(heads // groups, dim=1) for y in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * size**-0.5
    scores = scores.masked_fill(torch.ones(count, count, dtype=torch.bool).triu(1), -torch.inf)
    return linear("self_attn.o_proj", torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(count, -1))


def _rotated(x: Tensor, theta: float) -> Tensor:
    size = x.shape[-1]
    angle = torch.arange(len(x)).double()[:, None] * theta ** -(torch.arange(0, size, 2).double() / size)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    first, second = x[..., : size // 2], x[..., size // 2 :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


@dataclass(frozen=True)
class PlainHead:
    """A published folder: its settings, its tensors in float64, and the target's embedding for one without its own."""

    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    embedding: Tensor

    @classmethod
    def read(cls, folder: Path, embedding: Tensor) -> PlainHead:
        tensors = {name: value.double() for name, value in load_file(folder / "model.safetensors").items()}
        return cls(json.loads((folder / "config.json").read_text()), tensors, embedding.double())

    @property
    def layer(self) -> Mapping[str, Any]:
        layer: Mapping[str, Any] = self.settings.get("transformer_layer_config", self.settings)
        return layer

    def layers_entered(self, layers: int) -> list[int]:
        """The layers of the target whose inputs the head reads: those of `eagle_config` are outputs."""
        nested = self.settings.get("eagle_config", {}).get(IDS)
        if nested is not None:
            return [number + 1 for number in nested]
        return self.settings.get(IDS) or [2, layers // 2, layers - 3]

    def token_of_row(self) -> Tensor:
        rows = len(self.tensors["lm_head.weight"])
        return torch.arange(rows) + self.tensors.get("d2t", torch.zeros(rows)).long()

    def steps(self, tokens: Sequence[int], states: Tensor, guesses: Sequence[int]) -> list[Tensor]:
        """Logits of the head's rows after the text, whose states[i] is of its token i, and after each further guess."""
        read = list(tokens[1:])
        gs = [self._projected(states[i].double()) for i in range(len(read))]
        found = []
        for guess in [*guesses, None]:
            logits, state = self._run(read, torch.stack(gs))
            found.append(logits)
            if guess is not None:
                read.append(guess)
                gs.append(state)
        return found

    def _projected(self, state: Tensor) -> Tensor:
        if self.settings.get("norm_before_fc"):
            state = self._norm("input_norm", state)
        if self.settings.get("fc_norm"):
            size = self.settings.get("target_hidden_size") or self.layer["hidden_size"]
            state = torch.cat([self._norm(f"fc_norm.{i}", part) for i, part in enumerate(state.split(size))])
        return self.tensors["fc.weight"] @ state

    def _run(self, tokens: Sequence[int], g: Tensor) -> tuple[Tensor, Tensor]:
        """The logits and the next state after the last token."""
        embedding = self.tensors.get("embed_tokens.weight", self.embedding)
        beside = self._norm(self._of_layer("hidden_norm"), g)
        both = torch.cat([self._norm(self._of_layer("input_layernorm"), embedding[list(tokens)]), beside], -1)
        x = (beside if self.settings.get("norm_before_residual") else g) + self._attention(both)
        normed = self._norm(self._of_layer("post_attention_layernorm"), x)
        gate, up = (self._linear(f"mlp.{name}_proj", normed) for name in ("gate", "up"))
        x = (x + self._linear("mlp.down_proj", torch.nn.functional.silu(gate) * up))[-1]
        out = self._norm("norm", x)
        return self.tensors["lm_head.weight"] @ out, out if self.settings.get("norm_output") else x

    def _attention(self, x: Tensor) -> Tensor:
        def norm(name: str, x: Tensor) -> Tensor:
            return self._norm(self._of_layer(name), x) if self.layer.get("model_type") == "qwen3" else x

        return attention(x, self.layer, self._linear, norm)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self.layer["rms_norm_eps"]).rsqrt()
        return x * scale * self.tensors[f"{name}.weight"]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        name = self._of_layer(name)
        bias = self.tensors.get(f"{name}.bias")
        out = x @ self.tensors[f"{name}.weight"].T
        return out if bias is None else out + bias

    def _of_layer(self, name: str) -> str:
        return f"{'layers.0' if 'transformer_layer_config' in self.settings else 'midlayer'}.{name}"
