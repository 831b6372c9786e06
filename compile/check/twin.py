"""A small twin of a checkpoint: its architecture and options, but few layers, few tokens and random weights.

The twin keeps the size of heads and how many share keys, one layer of each kind, activation functions, norms and their
epsilons, the rotary embedding with all its factors, multipliers, caps, biases, ties, and the length of the context. It
has fewer layers, a smaller vocabulary, narrower feed-forward and hidden states (with fewer heads if their size follows
from the width, except with ALiBi), and smaller windows (`WINDOWS`), so that a short text exceeds them. referee.py
compares the windows of the whole model's graph with its config.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from mxspec.compile.checkpoint.buffers import stored_buffers
from mxspec.compile.checkpoint.experts import chosen_experts
from mxspec.compile.checkpoint.names import is_computed, name_parameters
from mxspec.compile.checkpoint.tensors.weight_files import SAFETENSORS
from mxspec.compile.heads.eagle3 import Eagle3Config
from mxspec.formats.safetensors_file import SafetensorsWriter, plan_layout

LAYERS = 2  # at least; as many as it takes to have one of each kind
VOCABULARY = 512
FEED_FORWARD = 512
HIDDEN = 256  # approximate; a multiple of the heads
EXPERTS = 8  # at least; more where more are chosen
HEADS = 8  # where a head's size is the width of the hidden states by the number of heads
WINDOW = 24  # tokens
WINDOWS = ("sliding_window", "window_size")  # keys of configs
_LAYER = re.compile(r"\.\d+\.")
_FEED_FORWARD_KEYS = (
    *("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner"),
    *("d_ff", "encoder_ffn_dim", "decoder_ffn_dim"),
    *("moe_intermediate_size", "shared_expert_intermediate_size"),
)
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_DECODER_LAYERS = ("num_decoder_layers", "decoder_layers")  # keys of encoder-decoders
_NOISE = 1_048_573  # random values made once and repeated; a prime, so that no two rows or heads are the same


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of random weights: `gain` of a matrix (standard deviation times √inputs), deviation of embeddings."""

    name: str
    gain: float
    embedding: float


QUIET = Scale("quiet", gain=0.02, embedding=1e-3)  # the norms' inputs are so small that their epsilons show
LOUD = Scale("loud", gain=1.5, embedding=0.3)  # attention is sharp, caps and activation functions are far from linear


def write_twin(config: PreTrainedConfig, folder: Path, scale: Scale = LOUD) -> None:
    """Write to `folder` a checkpoint of `shrink(config)` with random weights, float16.

    Buffers of a few numbers are the same at every scale: a graph holds them as constants.
    """
    small = shrink(config)
    small.save_pretrained(folder)
    model = name_parameters(small)
    buffers = stored_buffers(model)
    values_of = {name: value for name, value in model.named_parameters() if not is_computed(model, name)} | buffers
    smaller = _unscaled_queries(model)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    layout = plan_layout([(name, "F16", tuple(value.shape)) for name, value in values_of.items()])
    random = np.random.default_rng(0)
    noise = random.standard_normal(_NOISE, np.float32)
    with SafetensorsWriter(folder / SAFETENSORS.single, layout) as writer:
        for name, tensor in values_of.items():
            writer.begin(name)
            gains = LOUD if name in buffers else scale
            mean, deviation = _distribution(name, tuple(tensor.shape), gains, is_table=id(tensor) in tables)
            deviation *= smaller.get(name, 1.0)
            values = (mean + deviation * np.roll(noise, random.integers(_NOISE))).astype(np.float16)
            for piece in _repeat(values, tensor.numel()):
                writer.append(piece.data)
        writer.finish()


def _distribution(name: str, shape: tuple[int, ...], scale: Scale, *, is_table: bool) -> tuple[float, float]:
    """Mean and standard deviation of a tensor's values; norms differ from 1."""
    if is_table:
        return 0.0, scale.embedding
    if len(shape) == 2 and shape[0] == 1:  # a bias of logits, which must not hide quiet logits
        return 0.0, 0.01
    if len(shape) > 1:
        return 0.0, scale.gain * shape[-1] ** -0.5
    return (0.0, 0.2 * min(1.0, scale.gain)) if name.endswith("bias") else (1.0, 0.2)


def _unscaled_queries(model: PreTrainedModel) -> dict[str, float]:
    """1 / √(size of a head) by the queries' weights of attention that scales no scores: T5's, as it is initialised.

    Otherwise scores would be √size times as large, and the softmax would magnify float32 rounding errors.
    """
    found: dict[str, float] = {}
    for path, module in model.named_modules():
        if getattr(module, "scaling", None) == 1.0 and isinstance(queries := getattr(module, "q", None), nn.Linear):
            found[f"{path}.q.weight"] = float(queries.out_features / module.n_heads) ** -0.5
    return found


def _repeat(values: npt.NDArray[np.float16], count: int) -> Iterator[npt.NDArray[np.float16]]:
    while count > 0:
        yield values[:count]
        count -= len(values)


def shrink(config: PreTrainedConfig) -> PreTrainedConfig:
    """The same options in a small model; see the head of this file."""
    small = copy.deepcopy(config)
    _keep_layers(small, layers_of_each_kind(config))
    small.vocab_size = min(VOCABULARY, config.vocab_size)
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        try:
            setattr(small, key, None)
        except StrictDataclassError:  # CWM's must be there
            setattr(small, key, 0)
    if config.is_encoder_decoder:
        _shrink_decoder(small, config)
    if isinstance(small, Eagle3Config):
        small.draft_vocab_size = min(small.vocab_size // 2, small.draft_vocab_size)
    for keys, size in ((_FEED_FORWARD_KEYS, FEED_FORWARD), (WINDOWS, WINDOW)):
        for key in keys:
            if isinstance(value := getattr(config, key, None), int):
                setattr(small, key, min(size, value))
    _shrink_experts(small, config)
    return _narrow(small)


def outputs_of_twin(
    hidden_state_outputs: Sequence[int], config: PreTrainedConfig, twin: PreTrainedConfig
) -> tuple[int, ...]:
    """The places whose states a twin gives, if its model gives some: all layers, and the same after them."""
    after = [
        twin.num_hidden_layers + layer - config.num_hidden_layers
        for layer in hidden_state_outputs
        if layer >= config.num_hidden_layers
    ]
    return (*range(twin.num_hidden_layers), *after) if hidden_state_outputs else ()


def _shrink_experts(small: PreTrainedConfig, config: PreTrainedConfig) -> None:
    """Keep few experts of a mixture, but always some that no row chooses; one layer before them where there are any."""
    chosen = chosen_experts(config) or 1
    groups = getattr(config, "n_group", None) or 1
    kept = groups * -(-max(EXPERTS, 2 * chosen) // groups)
    for key in _EXPERT_KEYS:
        if isinstance(experts := getattr(config, key, None), int) and experts > kept:
            setattr(small, key, kept)
    if getattr(config, "first_k_dense_replace", 0):
        small.first_k_dense_replace = 1


def _shrink_decoder(small: PreTrainedConfig, config: PreTrainedConfig) -> None:
    """Shrink an encoder-decoder's own keys for its decoder; keep a padding id, from which some count positions."""
    for key in _DECODER_LAYERS:
        if isinstance(layers := getattr(config, key, None), int):
            setattr(small, key, min(LAYERS, layers))
    if hasattr(config, "decoder_vocab_size"):
        small.decoder_vocab_size = small.vocab_size
    if config.pad_token_id is not None:
        small.pad_token_id = min(config.pad_token_id, small.vocab_size - 1)


def layers_of_each_kind(config: PreTrainedConfig) -> list[int]:
    """The first layer of each kind, filled up to `LAYERS` with the first other layers."""
    first: dict[str, int] = {}
    for layer, kind in enumerate(layer_kinds(config)):
        first.setdefault(kind, layer)
    others = [layer for layer in range(config.num_hidden_layers) if layer not in first.values()]
    return sorted([*first.values(), *others[: max(0, LAYERS - len(first))]])


def layer_kinds(config: PreTrainedConfig) -> list[str]:
    """The kind of each layer: its entries in all lists of the config that have one for each layer."""
    lists = [value for _, value in _layer_lists(config)]
    return [repr([entries[layer] for entries in lists]) for layer in range(config.num_hidden_layers)]


def _layer_lists(config: PreTrainedConfig) -> list[tuple[str, list[Any]]]:
    lists = [(key, value) for key, value in vars(config).items() if isinstance(value, list)]
    return [(key, value) for key, value in lists if len(value) == config.num_hidden_layers]


def _keep_layers(config: PreTrainedConfig, layers: list[int]) -> None:
    for key, value in _layer_lists(config):
        setattr(config, key, [value[layer] for layer in layers])
    if kinds := getattr(config, "attention_layers", None):  # GPT-Neo's, which it makes of the setting that follows
        config.attention_types = [[kinds, 1]]
    config.num_hidden_layers = len(layers)


def _narrow(config: PreTrainedConfig) -> PreTrainedConfig:
    """Narrow the hidden states: with as many heads if the config sets their size, else with fewer.

    With ALiBi the number of heads stays, because its slopes depend on it.
    """
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    own_size = not config.is_encoder_decoder or getattr(config, "head_dim", None)
    if own_size and (narrow := _with_sizes(config, hidden_size=2 * heads * -(-HIDDEN // (2 * heads)), head_dim=size)):
        rows = {heads * size, (heads + 2 * groups) * size}  # of the queries' projection
        whole = size != narrow.hidden_size and _norms_queries_by(narrow, narrow.hidden_size)
        if rows & _layer_widths(narrow) and not whole:
            return narrow
    share = heads // groups
    kept = share * max(1, HEADS // share)
    if uses_alibi(config) or config.hidden_size != heads * size:
        return config
    sizes = {"num_key_value_heads": kept // share} if groups != heads else {}
    if of_decoder := getattr(config, "decoder_attention_heads", None):
        sizes["decoder_attention_heads"] = of_decoder * kept // heads
    narrow = _with_sizes(config, hidden_size=kept * size, num_attention_heads=kept, **sizes)
    return narrow if narrow and _layer_widths(narrow) else config


def uses_alibi(config: PreTrainedConfig) -> bool:
    """Whether attention has ALiBi's slopes, which follow from the number of heads."""
    return bool(getattr(config, "alibi", config.model_type in ("bloom", "mpt")))


def _with_sizes(config: PreTrainedConfig, hidden_size: int, **sizes: int) -> PreTrainedConfig | None:
    """A copy with other sizes, or None if it would not be narrower."""
    if hidden_size >= config.hidden_size:
        return None
    changed = copy.deepcopy(config)
    if getattr(config, "word_embed_proj_dim", None) == config.hidden_size:  # OPT's
        sizes["word_embed_proj_dim"] = hidden_size
    if getattr(config, "num_key_value_heads", None) == config.num_attention_heads:
        sizes.setdefault("num_key_value_heads", sizes.get("num_attention_heads", config.num_attention_heads))
    for key, value in {"hidden_size": hidden_size, **sizes}.items():
        setattr(changed, key, value)
    return changed


def _norms_queries_by(config: PreTrainedConfig, width: int) -> bool:
    """Whether a norm of the queries has this width: OLMoE's has that of the hidden states, whatever the heads'."""
    named = name_parameters(config).named_parameters()
    return any(name.endswith("q_norm.weight") and value.shape == (width,) for name, value in named)


def _layer_widths(config: PreTrainedConfig) -> set[int]:
    """Sizes of the matrices of decoder layers; none where the model cannot be built."""
    try:
        parameters = name_parameters(config).named_parameters()
    except Exception:  # transformers raises various errors for inconsistent widths
        return set()
    matrices = [value.shape for name, value in parameters if value.ndim == 2 and _LAYER.search(name)]
    return {size for shape in matrices for size in shape}
