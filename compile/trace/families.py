"""Changes that some models need before they are traced, by the names of their modules' classes.

Norms, GELUs and positions that a model computes in several operators become one node each. Attention that calls no
function of transformers' is replaced by the call's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from mxspec.compile.trace.attention import CallInputs
from mxspec.compile.trace.modules import ComputedPositions, LayerNorm, LearnedPositions, RmsNorm, TanhGelu, adapt_t5
from mxspec.compile.trace.skeleton import ATTENTION_NAME

_EAGER = {"codegen", "falcon", "gpt_neo", "gptj"}  # types whose classes refuse other attention than their own


def attention_of(config: PreTrainedConfig) -> str:
    """The attention to build the model with."""
    return "eager" if config.model_type in _EAGER else ATTENTION_NAME


def prepare(config: PreTrainedConfig) -> None:
    """Set Falcon's number of key-value heads under the usual name; to be called before the model is built."""
    if config.model_type == "falcon":
        one = config.multi_query and not config.new_decoder_architecture
        config.num_key_value_heads = 1 if one else config.num_kv_heads


def adapt(model: PreTrainedModel, call: CallInputs) -> None:
    """Change the modules of a model in place, which then read the call."""
    shared: dict[str, Any] = {}  # tables of positions that all modules of a class look up
    for path, module in list(model.named_modules()):
        kind, own = type(module).__name__, cast(Any, module)
        if kind in _ONE_NODE:
            model.set_submodule(path, _ONE_NODE[kind](own))
        elif kind == "Gemma4RMSNorm":
            model.set_submodule(path, _gemma4_norm(own, model.get_submodule(path.rpartition(".")[0])))
        elif kind in _LEARNED:
            model.set_submodule(path, LearnedPositions(own.weight, own.offset, call.positions))
        elif kind in _SINUSOIDS:
            if kind not in shared:
                shared[kind] = ComputedPositions(_SINUSOIDS[kind](own), call.positions)
            model.set_submodule(path, shared[kind])
        elif kind in _WITH_ALIBI:
            forward, slopes = _WITH_ALIBI[kind]
            own.forward = partial(forward, own, call)
            own.register_buffer("alibi_slopes", slopes(own))
        elif kind == "MptModel":
            own.forward = partial(_run_mpt_layers, own)
        elif kind in ("GPTJAttention", "CodeGenAttention"):
            own._attn = partial(_attend, own, call, 1 / own.scale_attn, None)
            own.embed_positions = shared.setdefault(kind, own.embed_positions)
        elif kind == "GPTNeoSelfAttention":
            own.layer_idx = own.layer_id
            own._attn = partial(
                _attend, own, call, 1.0, own.config.window_size if own.attention_type == "local" else None
            )
            del own.bias  # its mask
    if model.config.model_type in ("t5", "mt5"):
        adapt_t5(model)


_ONE_NODE: dict[str, Callable[[Any], nn.Module]] = {
    **dict.fromkeys(("CohereLayerNorm", "Cohere2LayerNorm"), lambda own: LayerNorm(own.weight, own.variance_epsilon)),
    **dict.fromkeys(
        ("HeliumRMSNorm", "T5LayerNorm", "MT5LayerNorm"), lambda own: RmsNorm(own.weight, own.variance_epsilon)
    ),
    "BloomGelu": lambda own: TanhGelu(),
}
_LEARNED = {"BartLearnedPositionalEmbedding", "MBartLearnedPositionalEmbedding"}
_SINUSOIDS: dict[str, Callable[[Any], Tensor]] = {
    # A parameter that is always computed, never loaded.
    "MarianSinusoidalPositionalEmbedding": lambda own: own.create_weight(),
    # It counts the tokens that are not padding; texts here have none, and begin at the row after the padding's.
    "M2M100SinusoidalPositionalEmbedding": lambda own: own.weights[own.padding_idx + 1 :].clone(),
}


def _gemma4_norm(own: Any, attention: Any) -> RmsNorm:
    """Gemma 4 computes its norm with a power that no fusion recognises; the norm of values has no weight."""
    return RmsNorm(own.weight if own.with_scale else nn.Buffer(torch.ones(attention.head_dim)), own.eps)


def _attend(
    own: Any,
    call: CallInputs,
    scaling: float,
    window: int | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: None,
) -> tuple[Tensor, None]:
    """GPT-J, CodeGen and GPT-Neo have an attention method of their own, in the operator's order of heads."""
    output = call.attend(own, query, key, value, mask, scaling=scaling, sliding_window=window)[0]
    return output.transpose(1, 2), None


def _bloom(own: Any, call: CallInputs, hidden_states: Tensor, residual: Tensor, **_: Any) -> tuple[Tensor, None]:
    product = own.query_key_value(hidden_states)
    pieces = product.view(1, product.shape[1], own.num_heads, 3 * own.head_dim).chunk(3, dim=-1)
    query, key, value = (piece.transpose(1, 2) for piece in pieces)
    output = call.attend(own, query, key, value, None, own.inv_norm_factor, slopes=own.alibi_slopes)[0]
    return residual + own.dense(output.reshape(hidden_states.shape)), None


def _falcon(
    own: Any,
    call: CallInputs,
    hidden_states: Tensor,
    alibi: Tensor | None = None,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Falcon's own attention repeats keys and values for every query."""
    heads, kv_heads, size = own.num_heads, own.num_kv_heads, own.head_dim
    sizes = [heads // kv_heads * size, size, size]  # of a key-value head's queries, key and value
    product = own.query_key_value(hidden_states)
    tokens = product.shape[1]
    pieces = product if kv_heads == 1 else product.view(1, tokens, kv_heads, sum(sizes))
    query, key, value = (piece.reshape(1, tokens, -1, size).transpose(1, 2) for piece in pieces.split(sizes, dim=-1))
    if alibi is None:
        assert position_embeddings is not None
        query, key = _source(own).apply_rotary_pos_emb(query, key, *position_embeddings)
    output = call.attend(own, query, key, value, None, own.inv_norm_factor, slopes=own.alibi_slopes)[0]
    return own.dense(output.reshape(1, tokens, heads * size)), None


def _mpt(own: Any, call: CallInputs, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
    product = own.Wqkv(hidden_states)
    if own.clip_qkv:
        product = product.clamp(-own.clip_qkv, own.clip_qkv)
    tokens = product.shape[1]
    pieces = product.chunk(3, dim=2)
    query, key, value = (piece.reshape(1, tokens, own.n_heads, -1).transpose(1, 2) for piece in pieces)
    output = call.attend(own, query, key, value, None, own.softmax_scale, slopes=own.alibi_slopes)[0]
    return own.out_proj(output.reshape(hidden_states.shape)), None


def _run_mpt_layers(own: Any, input_ids: Tensor, **_: Any) -> BaseModelOutputWithPast:
    """MPT's own forward requires a mask."""
    hidden_states = own.wte(input_ids)
    for block in own.blocks:
        hidden_states, _ = block(hidden_states, position_bias=None, attention_mask=None)
    return BaseModelOutputWithPast(last_hidden_state=own.norm_f(hidden_states))


def _source(own: nn.Module) -> Any:
    """transformers' file of a module."""
    return sys.modules[type(own).__module__]


def _bloom_slopes(own: Any) -> Tensor:
    slopes: Tensor = _source(own).build_alibi_tensor(torch.ones(1, 2), own.num_heads, torch.float32)[:, 0, 1]
    return slopes


def _falcon_slopes(own: Any) -> Tensor | None:
    """Of some checkpoints; rounded to bfloat16 and scaled with the scores, as in the model."""
    return _bloom_slopes(own) * own.inv_norm_factor if own.config.alibi else None


def _mpt_slopes(own: Any) -> Tensor:
    positions: Tensor = _source(own).build_mpt_alibi_tensor(own.n_heads, 2)
    return positions[:, 0, 1] - positions[:, 0, 0]


_WITH_ALIBI: dict[str, tuple[Callable[..., tuple[Tensor, None]], Callable[[Any], Tensor | None]]] = {
    "BloomAttention": (_bloom, _bloom_slopes),
    "FalconAttention": (_falcon, _falcon_slopes),
    "MptAttention": (_mpt, _mpt_slopes),
}
