"""Multi-token-prediction layers (MTP) in torch, from the parts of their families in transformers.

g is one state of the target; what the last norm gives is the g of the next step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.models.glm4_moe.modeling_glm4_moe import (
    Glm4MoeDecoderLayer,
    Glm4MoePreTrainedModel,
    Glm4MoeRMSNorm,
    Glm4MoeRotaryEmbedding,
)
from transformers.models.qwen2.modeling_qwen2 import (
    Qwen2DecoderLayer,
    Qwen2PreTrainedModel,
    Qwen2RMSNorm,
    Qwen2RotaryEmbedding,
)

from mxspec.compile.heads.head import StatesHead
from mxspec.compile.heads.mtp_config import Glm4MoeMtpConfig, MimoMtpConfig


class MtpLayer(nn.Module):
    """A decoder layer that reads a projection of the normed embedding and the normed g."""

    def __init__(self, config: Any, block: nn.Module, norm: type[nn.Module]) -> None:
        super().__init__()
        width = config.hidden_size
        self.token_norm = norm(width, config.rms_norm_eps)
        self.hidden_norm = norm(width, config.rms_norm_eps)
        self.projection = nn.Linear(2 * width, width, bias=False)
        self.block = block
        self._state_first = config.state_first

    def forward(self, embedded: Tensor, g: Tensor, **attention: Any) -> Tensor:
        """What leaves the layer, float32[1, tokens, hidden], as both inputs are."""
        token, state = self.token_norm(embedded), self.hidden_norm(g)
        both = torch.cat((state, token) if self._state_first else (token, state), dim=-1)
        out: Tensor = self.block(self.projection(both), **attention)
        return out


class MtpHead(StatesHead):
    """What all families share."""

    goes_on_normed = True

    def project(self, states: Tensor) -> Tensor:
        return states

    def _build(self, block: nn.Module, norm: type[nn.Module], rotary: nn.Module) -> None:
        config, width = self.config, self.config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.layers = nn.ModuleList([MtpLayer(config, block, norm)])
        self.norm = norm(width, config.rms_norm_eps)
        self.rotary_emb = rotary
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)


class MimoMtp(MtpHead, Qwen2PreTrainedModel):  # type: ignore[misc]
    """MiMo-7B's."""

    config_class = MimoMtpConfig

    def __init__(self, config: MimoMtpConfig) -> None:
        super().__init__(config)
        self._build(Qwen2DecoderLayer(config, 0), Qwen2RMSNorm, Qwen2RotaryEmbedding(config=config))
        self.post_init()


class Glm4MoeMtp(MtpHead, Glm4MoePreTrainedModel):  # type: ignore[misc]
    """GLM-4.5's."""

    config_class = Glm4MoeMtpConfig

    def __init__(self, config: Glm4MoeMtpConfig) -> None:
        super().__init__(config)
        self._build(Glm4MoeDecoderLayer(config, 0), Glm4MoeRMSNorm, Glm4MoeRotaryEmbedding(config=config))
        self.post_init()


AutoModelForCausalLM.register(MimoMtpConfig, MimoMtp)
AutoModelForCausalLM.register(Glm4MoeMtpConfig, Glm4MoeMtp)
# How a checkpoint's experts become one parameter.
register_checkpoint_conversion_mapping(Glm4MoeMtpConfig.model_type, get_checkpoint_conversion_mapping("glm4_moe"))
