"""Multi-token-prediction layers (MTP): decoder layers of their target, in the target's checkpoint, that draft for it.

              reads                                       beside the token, as
    mimo      what enters the target's final norm         [state, token]
    glm4_moe  what the target's final norm gives          [token, state]

g is that one state of the target; what the layer's own last norm gives is the g of the next step. Sources: MiMo's
modeling_mimo.py, and vLLM's classes for both, whose targets give these states; transformers has GLM-4.5's as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, Glm4MoeConfig, Qwen2Config
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

from mxspec.compile.heads.head import HeadConfig, StatesHead
from mxspec.formats.errors import CheckpointError, UnsupportedModelError
from mxspec.formats.validation import shorten

_COUNTS = ("num_nextn_predict_layers", "num_mtp_layers")  # keys of configs
_OF_ALL_LAYERS = ("layer_types", "mlp_layer_types", *_COUNTS)  # keys that say nothing of this layer
_BLOCK = "layers.0.block."  # of all that a decoder layer has
Stored = TypeVar("Stored")  # a tensor of a checkpoint


class MtpConfig(HeadConfig):
    """Mixed into the configuration of the target's family: its one layer is as the target's last.

    A family's checkpoints have the layers below `prefix`, numbered from 0 or, `after_target`, from the target's last
    on; `parts` are their names of what is no decoder layer's, and the names in our module. The layer reads what enters
    the target's final norm, or, `after_norm`, what that gives.
    """

    state_first: ClassVar[bool]
    after_norm: ClassVar[bool]
    after_target: ClassVar[bool]
    prefix: ClassVar[str]
    parts: ClassVar[Mapping[str, str]]
    vocab_size: int
    hidden_state_count = 1

    @property
    def states_width(self) -> int:
        return self.hidden_size

    def layer_prefix(self, layers: int) -> str:
        """Where the first MTP layer of a target of `layers` layers is in its checkpoint."""
        return f"{self.prefix}{layers if self.after_target else 0}."

    def published(self, ours: str) -> str:
        """A layer's name, without the prefix, of a tensor of our module."""
        if ours.startswith(_BLOCK):
            return ours.removeprefix(_BLOCK)
        part = next(part for part, name in self.parts.items() if ours.startswith(f"{name}."))
        return part + ours.removeprefix(self.parts[part])

    def name_tensors(self, layers: int, tensors: Mapping[str, Stored], where: str) -> tuple[dict[str, Stored], str]:
        """The tensors of the first MTP layer under the names of our module, and a note if there are more layers.

        The target itself has `layers` layers. Raises CheckpointError if it has no such layer.
        """
        first = layers if self.after_target else 0
        found: dict[int, dict[str, Stored]] = {}
        for name, tensor in tensors.items():
            match = re.match(rf"{re.escape(self.prefix)}(\d+)\.", name)
            if match and (number := int(match[1])) >= first:
                found.setdefault(number, {})[self._ours(name[match.end() :])] = tensor
        if first not in found:
            raise CheckpointError(
                f"{where}: no tensors {self.layer_prefix(layers)}*: the checkpoint has no layer for --draft mtp, "
                "though its config.json promises one"
            )
        more = f"{where} has {len(found)} MTP layers: the draft is the first of them" if len(found) > 1 else ""
        return found[first], more

    def _ours(self, published: str) -> str:
        """The reverse of `published`."""
        part = next((part for part in self.parts if published.startswith(f"{part}.")), None)
        return _BLOCK + published if part is None else self.parts[part] + published.removeprefix(part)


@strict
class MimoMtpConfig(MtpConfig, Qwen2Config):  # type: ignore[misc]
    """MiMo-7B's."""

    model_type = "mxspec_mimo_mtp"
    state_first, after_norm, after_target = True, False, False
    prefix = "model.mtp_layers."
    parts: ClassVar[Mapping[str, str]] = {
        "token_layernorm": "layers.0.token_norm",
        "hidden_layernorm": "layers.0.hidden_norm",
        "input_proj": "layers.0.projection",
        "final_layernorm": "norm",
    }
    hidden_state_outputs: list[int] | None = None


@strict
class Glm4MoeMtpConfig(MtpConfig, Glm4MoeConfig):  # type: ignore[misc]
    """GLM-4.5's, whose layer has experts."""

    model_type = "mxspec_glm4_moe_mtp"
    state_first, after_norm, after_target = False, True, True
    prefix = "model.layers."
    parts: ClassVar[Mapping[str, str]] = {
        "enorm": "layers.0.token_norm",
        "hnorm": "layers.0.hidden_norm",
        "eh_proj": "layers.0.projection",
        "embed_tokens": "embed_tokens",
        "shared_head.norm": "norm",
        "shared_head.head": "lm_head",
    }
    hidden_state_outputs: list[int] | None = None


_KINDS: dict[str, type[MtpConfig]] = {"mimo": MimoMtpConfig, "glm4_moe": Glm4MoeMtpConfig}
for _kind in _KINDS.values():
    AutoConfig.register(_kind.model_type, _kind)  # type: ignore[attr-defined]


def mtp_settings(settings: dict[str, Any], where: str) -> dict[str, Any]:
    """Settings of the MTP layer of a target with these settings; `where` names their file in errors.

    Raises UnsupportedModelError for a target of another family, CheckpointError for one without such a layer.
    """
    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in _KINDS:
        known = " and ".join(sorted(_KINDS))
        raise UnsupportedModelError(f"{where}: --draft mtp knows the layers of {known}, not those of {shorten(kind)}")
    count = next((settings[key] for key in _COUNTS if key in settings), None)
    if type(count) is not int or count < 1:
        raise CheckpointError(
            f"{where}: {_COUNTS[0]}: got {shorten(count)}, expected 1 or more: the checkpoint has no layer for "
            "--draft mtp"
        )
    config = _KINDS[kind]
    return {
        **{key: value for key, value in settings.items() if key not in _OF_ALL_LAYERS},
        "model_type": config.model_type,  # type: ignore[attr-defined]
        "architectures": [config.__name__.removesuffix("Config")],
        "num_hidden_layers": 1,
        "first_k_dense_replace": 0,
        "tie_word_embeddings": False,
        "hidden_state_outputs": [settings["num_hidden_layers"] + config.after_norm],
    }


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
