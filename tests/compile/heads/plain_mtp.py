"""MTP layers in plain torch, by the published forms of MiMo-7B and GLM-4.5, without transformers.

It recomputes everything for each step, in float64.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import silu

from tests.compile.heads.plain_head import attention


@dataclass(frozen=True)
class PlainMtp:
    """A checkpoint: its settings, and its tensors in float64."""

    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @classmethod
    def read(cls, folder: Path) -> PlainMtp:
        tensors = {name: value.double() for name, value in load_file(folder / "model.safetensors").items()}
        return cls(json.loads((folder / "config.json").read_text()), tensors)

    @property
    def is_mimo(self) -> bool:
        return bool(self.settings["model_type"] == "mimo")

    def steps(self, tokens: Sequence[int], states: Tensor, guesses: Sequence[int]) -> list[Tensor]:
        """Logits after the text, whose states[i] is the target's of its token i, and after each further guess."""
        read, beside, found = list(tokens[1:]), list(states.double()[: len(tokens) - 1]), []
        for guess in [*guesses, None]:
            normed = self._run(read, torch.stack(beside))
            found.append(self._shared("shared_head.head.weight", "lm_head.weight") @ normed)
            if guess is not None:
                read.append(guess)
                beside.append(normed)
        return found

    def _run(self, tokens: Sequence[int], states: Tensor) -> Tensor:
        """What the last norm gives after the last token."""
        embedded = self._shared("embed_tokens.weight", "model.embed_tokens.weight")[list(tokens)]
        if self.is_mimo:
            pair = [self._norm("hidden_layernorm", states), self._norm("token_layernorm", embedded)]
            x = self._linear("input_proj", torch.cat(pair, -1))
        else:
            pair = [self._norm("enorm", embedded), self._norm("hnorm", states)]
            x = self._linear("eh_proj", torch.cat(pair, -1))
        x = x + self._attention(self._norm("input_layernorm", x))
        normed = self._norm("post_attention_layernorm", x)
        x = x + (self._gated("mlp", normed) if self.is_mimo else torch.stack([self._mixed(row) for row in normed]))
        return self._norm("final_layernorm" if self.is_mimo else "shared_head.norm", x)[-1]

    def _mixed(self, x: Tensor) -> Tensor:
        """The chosen experts of a row, and those of all rows."""
        s = self.settings
        scores = torch.sigmoid(self._linear("mlp.gate", x))
        choice = scores + self._of("mlp.gate.e_score_correction_bias")
        groups = choice.view(s["n_group"], -1)
        best = groups.topk(2, dim=-1).values.sum(-1).topk(s["topk_group"]).indices
        kept = torch.full_like(groups, -torch.inf)
        kept[best] = groups[best]
        chosen = kept.flatten().topk(s["num_experts_per_tok"]).indices
        weights = scores[chosen] / scores[chosen].sum() * s["routed_scaling_factor"]
        experts = [self._gated(f"mlp.experts.{expert}", x) for expert in chosen.tolist()]
        return self._gated("mlp.shared_experts", x) + (weights[:, None] * torch.stack(experts)).sum(0)

    def _gated(self, name: str, x: Tensor) -> Tensor:
        gate, up = (self._linear(f"{name}.{side}_proj", x) for side in ("gate", "up"))
        return self._linear(f"{name}.down_proj", silu(gate) * up)

    def _attention(self, x: Tensor) -> Tensor:
        return attention(
            x, self.settings, self._linear, self._norm if self.settings.get("use_qk_norm") else lambda _, y: y
        )

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self.settings["rms_norm_eps"]).rsqrt()
        return x * scale * self._of(f"{name}.weight")

    def _linear(self, name: str, x: Tensor) -> Tensor:
        bias = self.tensors.get(f"{self._prefix}{name}.bias")
        out = x @ self._of(f"{name}.weight").T
        return out if bias is None else out + bias

    def _of(self, name: str) -> Tensor:
        return self.tensors[self._prefix + name]

    def _shared(self, own: str, targets: str) -> Tensor:
        return self.tensors.get(self._prefix + own, self.tensors[targets])

    @property
    def _prefix(self) -> str:
        return "model.mtp_layers.0." if self.is_mimo else f"model.layers.{self.settings['num_hidden_layers']}."
