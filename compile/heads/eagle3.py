"""An EAGLE-3 head (Li et al. 2025): its configuration from both published forms, its tensors' names, and its module.

    LlamaForCausalLMEagle3   SafeAI, SpecForge, NVIDIA: a Llama's settings; the layers are in `eagle_config`
    Eagle3Speculator         speculators: the settings are in `transformer_layer_config`; the layers are beside it

A head is one decoder layer that reads tokens beside g, which is made of the hidden states that *enter* some layers of
the target; what leaves the layer is the g of the next step. The layers in `eagle_config` are those that the states
*leave*, so they are one less; those beside it are as here. Parameters have the names of the speculators form.
docs/drafts.md says more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaPreTrainedModel,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from mxspec.compile.heads.head import HeadConfig, StatesHead
from mxspec.formats.errors import CheckpointError, UnsupportedModelError
from mxspec.formats.validation import shorten

MODEL_TYPE = "mxspec_eagle3"
LAYERS = "eagle_aux_hidden_state_layer_ids"  # the key of the layers in both forms
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
DEFAULT_PLACES = 3
_PLAIN, SPECULATORS = "LlamaForCausalLMEagle3", "Eagle3Speculator"
_NAMES = {_PLAIN, "Eagle3LlamaForCausalLM", SPECULATORS, "Eagle3DraftModel"}
_OTHER_DRAFTS = ("eagle", "medusa", "speculator", "dflash", "hydra")  # in the names of other trained drafts
_LAYER_KINDS = ("llama", "qwen3")
OFFSETS = "d2t"
Stored = TypeVar("Stored")  # a tensor of a checkpoint


@strict
class Eagle3Config(HeadConfig, LlamaConfig):  # type: ignore[misc]
    """A head: its one layer, by Llama's settings, and what it reads.

    It proposes `draft_vocab_size` tokens and reads `vocab_size`. `hidden_state_outputs` are the layers of the target
    whose inputs it reads, `hidden_state_count` of them, or None for the default; each has `target_hidden_size` values.
    `norm_before_fc` norms them together and `fc_norm` each by itself; `norm_before_residual` takes the normed state as
    the layer's residual; `norm_output` goes on with the normed result. With `qk_norm` queries and keys are normed as in
    Qwen3.
    """

    model_type = MODEL_TYPE
    draft_vocab_size: int = 32000
    target_hidden_size: int = 4096
    hidden_state_outputs: list[int] | None = None
    hidden_state_count: int = DEFAULT_PLACES
    qk_norm: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    @property
    def states_width(self) -> int:
        return self.target_hidden_size


AutoConfig.register(MODEL_TYPE, Eagle3Config)


def head_settings(settings: dict[str, Any], where: str) -> dict[str, Any] | None:
    """Settings of an Eagle3Config, or None for those of another model; `where` names the file in errors.

    Raises CheckpointError for invalid settings, UnsupportedModelError for another kind of trained draft.
    """
    if settings.get("model_type") == MODEL_TYPE:  # our own form, which twins are written in
        return None
    stated = settings.get("architectures")
    names = [name for name in stated if isinstance(name, str)] if isinstance(stated, list) else []
    algorithm = settings.get("speculators_model_type")
    if algorithm is None and not _NAMES.intersection(names):
        for name in names:
            if any(kind in name.lower() for kind in _OTHER_DRAFTS):
                raise UnsupportedModelError(f"{where}: {name} is a trained draft of another kind, expected EAGLE-3")
        return None
    if algorithm not in (None, "eagle3"):
        raise UnsupportedModelError(f"{where}: speculators_model_type: got {shorten(algorithm)}, expected 'eagle3'")
    of_speculators = algorithm is not None or "transformer_layer_config" in settings
    layer, ids, leave = _of_speculators(settings, where) if of_speculators else _plain(settings)
    flags = {name: settings.get(name, False) for name in FLAGS}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise CheckpointError(f"{where}: {name}: got {shorten(value)}, expected true or false")
    if flags["norm_before_fc"] and flags["fc_norm"]:
        raise CheckpointError(f"{where}: got norm_before_fc and fc_norm, expected one of them")
    if (count := layer.get("num_hidden_layers", 1)) != 1:
        raise UnsupportedModelError(f"{where}: num_hidden_layers: got {shorten(count)}, expected a head of 1 layer")
    kinds = layer.get("layer_types")
    if isinstance(kinds, list) and kinds not in ([], ["full_attention"]):
        raise UnsupportedModelError(f"{where}: layer_types: got {shorten(kinds)}, expected ['full_attention']")
    places = _places(ids, leave=leave, where=where)
    layer = {"quantization_config": settings.get("quantization_config"), **layer}
    kept = {key: value for key, value in layer.items() if key not in ("eagle_config", "speculators_config", LAYERS)}
    vocab_size, hidden_size = layer.get("vocab_size"), layer.get("hidden_size")
    return {
        **kept,
        **flags,
        "model_type": MODEL_TYPE,
        "architectures": [_PLAIN if leave else SPECULATORS],
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "qk_norm": layer.get("model_type") == "qwen3",
        "hidden_state_outputs": places,
        "hidden_state_count": DEFAULT_PLACES if places is None else len(places),
        "draft_vocab_size": _size(settings, "draft_vocab_size", vocab_size, where),
        "target_hidden_size": _size(settings, "target_hidden_size", hidden_size, where),
    }


def default_places(layers: int) -> list[int]:
    """The layers whose inputs a head reads that names none, of a target of so many: a low, a middle and a high one."""
    return [2, layers // 2, layers - 3]


def _plain(settings: dict[str, Any]) -> tuple[dict[str, Any], Any, bool]:
    """The layer's settings, the layers that the head names, and whether states leave them rather than enter them."""
    nested = settings.get("eagle_config")
    if isinstance(nested, dict) and nested.get(LAYERS) is not None:
        return settings, nested[LAYERS], True
    return settings, settings.get(LAYERS), False


def _of_speculators(settings: dict[str, Any], where: str) -> tuple[dict[str, Any], Any, bool]:
    layer = settings.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise CheckpointError(f"{where}: transformer_layer_config: got {shorten(layer)}, expected an object")
    if (kind := layer.get("model_type", "llama")) not in _LAYER_KINDS:
        expected = " or ".join(map(repr, _LAYER_KINDS))
        raise UnsupportedModelError(
            f"{where}: transformer_layer_config.model_type: got {shorten(kind)}, expected {expected}"
        )
    stated = settings.get("speculators_config")
    algorithm = stated.get("algorithm", "eagle3") if isinstance(stated, dict) else "eagle3"
    if algorithm != "eagle3":
        raise UnsupportedModelError(
            f"{where}: speculators_config.algorithm: got {shorten(algorithm)}, expected 'eagle3'"
        )
    return layer, settings.get(LAYERS), False


def _places(ids: Any, *, leave: bool, where: str) -> list[int] | None:
    """The layers that the states enter, None for the default ones."""
    if ids is None:
        return None
    whole = isinstance(ids, list) and ids and all(type(number) is int for number in ids)
    if not whole or min(ids) < (-1 if leave else 0):
        raise CheckpointError(f"{where}: {LAYERS}: got {shorten(ids)}, expected a list of numbers of layers")
    return [number + 1 if leave else number for number in ids]


def _size(settings: dict[str, Any], key: str, default: Any, where: str) -> int:
    value = settings.get(key)
    value = default if value is None else value
    if type(value) is not int or not 1 <= value <= 1 << 24:
        raise CheckpointError(f"{where}: {key}: got {shorten(value)}, expected 1 to {1 << 24}")
    return int(value)


def name_head_tensors(tensors: Mapping[str, Stored]) -> tuple[dict[str, Stored], Stored | None]:
    """Tensors under the names of the speculators form, and d2t; the other form calls its layer `midlayer`.

    t2d, which says the same as d2t, is left out.
    """
    named = {name.removeprefix("model.").replace("midlayer.", "layers.0.", 1): value for name, value in tensors.items()}
    return {name: value for name, value in named.items() if name not in (OFFSETS, "t2d")}, named.get(OFFSETS)


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
            self.input_norm = LlamaRMSNorm(config.hidden_state_count * size, eps=config.rms_norm_eps)
        if config.fc_norm:
            norms = (LlamaRMSNorm(size, eps=config.rms_norm_eps) for _ in range(config.hidden_state_count))
            self.fc_norm = nn.ModuleList(norms)
        self.fc = nn.Linear(config.hidden_state_count * size, width, bias=False)
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
