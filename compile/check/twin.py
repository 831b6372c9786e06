"""A small twin of a large checkpoint: its architecture and options, but few layers, few tokens and random weights."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
from transformers import PreTrainedConfig

from mxspec.compile.checkpoint.checkpoint import WEIGHTS
from mxspec.compile.checkpoint.names import name_parameters
from mxspec.formats.safetensors_file import SafetensorsWriter, plan_layout

LAYERS = 2  # at least; as many as it takes to have one of each kind
VOCABULARY = 512
INTERMEDIATE = 512
_NOISE = 1 << 20  # random values made once and repeated


def write_twin(large: PreTrainedConfig, twin: Path) -> None:
    """Write to `twin` a checkpoint of a configuration like this one, small enough to try every length of call on."""
    config = shrink(large)
    config.save_pretrained(twin)
    parameters = {name: tuple(value.shape) for name, value in name_parameters(config).named_parameters()}
    layout = plan_layout([(name, "F16", shape) for name, shape in parameters.items()])
    noise = np.random.default_rng(0).standard_normal(_NOISE)
    with SafetensorsWriter(twin / WEIGHTS, layout) as writer:
        for name, shape in parameters.items():
            writer.begin(name)
            values = noise * shape[-1] ** -0.5 if len(shape) > 1 else 1 + 0.2 * noise
            left = int(np.prod(shape))
            while left:
                count = min(left, _NOISE)
                writer.append(values[:count].astype(np.float16).tobytes())
                left -= count
        writer.finish()


def shrink(config: PreTrainedConfig) -> PreTrainedConfig:
    """The same options with few layers, few tokens and narrow feed-forward layers; heads and their sizes stay."""
    small = copy.deepcopy(config)
    layers = config.num_hidden_layers
    kinds: list[str] = getattr(config, "layer_types", None) or []
    count = next(n for n in range(min(LAYERS, layers), layers + 1) if set(kinds[:n]) == set(kinds))
    for key, value in vars(config).items():
        if isinstance(value, list) and len(value) == layers:  # one entry a layer
            setattr(small, key, value[:count])
    small.num_hidden_layers = count
    small.vocab_size = min(VOCABULARY, config.vocab_size)
    small.pad_token_id = small.bos_token_id = small.eos_token_id = None
    if getattr(config, "intermediate_size", None):
        small.intermediate_size = min(INTERMEDIATE, config.intermediate_size)
    return small
