"""An EAGLE-3 head in torch (Li et al. 2025): one decoder layer that reads tokens and hidden states.

g is made of the target's states at three places. What leaves the layer is the g of the next step. Parameters have the
names of the speculators form.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaPreTrainedModel,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from mxspec.compile.heads.eagle3_config import Eagle3Config
from mxspec.compile.heads.head import StatesHead


class HeadLayer(nn.Module):
    """A decoder layer whose attention reads the normed embedding beside the normed g."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        width, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        attention: Any = (Qwen3Attention if config.qk_norm else LlamaAttention)(config, layer_idx=0)
        for name, count in (("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)):
            wide = nn.Linear(2 * width, count * config.head_dim, bias=config.attention_bias)
            setattr(attention, name, wide)
        self.self_attn = attention
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(width, eps=config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(width, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(width, eps=config.rms_norm_eps)
        self._norm_before_residual = config.norm_before_residual

    def forward(self, embedded: Tensor, g: Tensor, **attention: Any) -> Tensor:
        """What leaves the layer, float32[1, tokens, hidden], as both inputs are."""
        normed = self.hidden_norm(g)
        residual = normed if self._norm_before_residual else g
        both = torch.cat((self.input_layernorm(embedded), normed), dim=-1)
        x = residual + self.self_attn(both, **attention)[0]
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Eagle3Head(StatesHead, LlamaPreTrainedModel):  # type: ignore[misc]
    """A head, with or without weights."""

    config_class = Eagle3Config

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config)
        self.goes_on_normed = config.norm_output
        width, size = config.hidden_size, config.target_hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        if config.norm_before_fc:
            self.input_norm = LlamaRMSNorm(config.tap_count * size, eps=config.rms_norm_eps)
        if config.fc_norm:
            norms = (LlamaRMSNorm(size, eps=config.rms_norm_eps) for _ in range(config.tap_count))
            self.fc_norm = nn.ModuleList(norms)
        self.fc = nn.Linear(config.tap_count * size, width, bias=False)
        self.layers = nn.ModuleList([HeadLayer(config)])
        self.norm = LlamaRMSNorm(width, eps=config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(config=config)
        self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False)
        self.post_init()

    def project(self, states: Tensor) -> Tensor:
        if self.config.norm_before_fc:
            states = self.input_norm(states)
        if self.config.fc_norm:
            pieces = states.chunk(len(self.fc_norm), dim=-1)
            states = torch.cat([norm(piece) for norm, piece in zip(self.fc_norm, pieces, strict=True)], dim=-1)
        g: Tensor = self.fc(states)
        return g


AutoModelForCausalLM.register(Eagle3Config, Eagle3Head)
