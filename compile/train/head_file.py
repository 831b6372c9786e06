"""A head to train, new or a published one, and the folder in the speculators form that it becomes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.fit_head import fit_head, table_of, target_ids
from mxspec.compile.checkpoint.settings.architecture import (
    architecture_name,
    context_limit,
    decoder_heads,
    decoder_layers,
    head_size,
)
from mxspec.compile.checkpoint.settings.config import make_config
from mxspec.compile.checkpoint.tensors.derived import Ids
from mxspec.compile.checkpoint.tensors.tensor import read_whole
from mxspec.compile.heads.eagle3 import FLAGS, LAYERS, SPECULATORS, Eagle3Config, Eagle3Head, default_places
from mxspec.formats.arrays import as_bits
from mxspec.formats.errors import BundleError, PairError
from mxspec.formats.tiles import quantize
from mxspec.formats.weight_format import BLOCK, weight_format

FORMATS = {"mxfp6_e2m3": "fp6_e2m3", "mxfp6_e3m2": "fp6_e3m2"}  # and Quark's names of them


def mx_matrices(weights: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Weights with each matrix [n, k] as codes uint8[n, 6k / 8] and, under NAME_scale, scales uint8[n, k / 32].

    A matrix whose k is not a multiple of 32 stays as it is.
    """
    packed = dict(weights)
    kind = weight_format(name)
    assert kind.element is not None
    for key, value in weights.items():
        if _has_blocks(value):
            codes, scales = quantize(value.float().numpy(), kind.element)
            rows = as_bits(codes, kind.bits).reshape(len(codes), -1)
            packed |= {key: torch.from_numpy(rows), f"{key}_scale": torch.from_numpy(scales)}
    return packed


def quantization_config(weights: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """What config.json says of them."""
    weight = {
        "dtype": FORMATS[name],
        "is_dynamic": False,
        "qscheme": "per_group",
        "ch_axis": -1,
        "group_size": BLOCK,
        "scale_format": "e8m0",
    }
    left = [key for key, value in weights.items() if value.ndim == 2 and not _has_blocks(value)]
    return {
        "quant_method": "quark",
        "version": "0.13",
        "global_quant_config": {"weight": weight},
        "exclude": ["embed_tokens", *(key.removesuffix(".weight") for key in left)],
        "export": {"weight_format": "real_quantized", "pack_method": "reorder"},
    }


def _has_blocks(value: Tensor) -> bool:
    return value.ndim == 2 and value.shape[1] % BLOCK == 0


CONFIG, WEIGHTS = "config.json", "model.safetensors"
_EMBEDDING = "embed_tokens.weight"
_POSITIONS = 2048  # of a head whose target does not say how many it knows


@dataclass(frozen=True, slots=True)
class Start:
    """What training begins with: a head in float32, and the target's id of each of its rows, int64[rows], rising."""

    head: Eagle3Head
    ids: Ids

    def tensors(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The file of these weights and the tokens; the embedding, which is the target's, is not among them."""
        ids = torch.from_numpy(self.ids)
        known = torch.zeros(self.head.config.vocab_size, dtype=torch.bool)
        return dict(weights) | {"d2t": ids - torch.arange(len(ids)), "t2d": known.index_fill(0, ids, value=True)}


def new_settings(target: Checkpoint, rows: int) -> dict[str, Any]:
    """The config.json of a new head: a layer of the target's sizes that reads three of its layers.

    Each state is normed by itself, because those of late layers are many times larger.
    """
    config = target.config
    layers, width = decoder_layers(config), config.hidden_size
    heads = decoder_heads(config)
    stated = getattr(config, "intermediate_size", None)
    rope = getattr(config, "rope_parameters", None) or {}
    theta = rope.get("rope_theta", 10000.0) if isinstance(rope, dict) else 10000.0
    layer = {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": stated if type(stated) is int else 4 * width,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": head_size(config),
        "num_hidden_layers": 1,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": context_limit(config) or _POSITIONS,
        "rms_norm_eps": getattr(config, "rms_norm_eps", None) or 1e-5,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
    places = sorted({min(max(place, 0), layers - 1) for place in default_places(layers)})
    flags = dict.fromkeys(FLAGS, False) | {"fc_norm": True, "norm_before_residual": True}
    return _settings(layer, flags, places, rows, target)


def settings_of(head: Eagle3Config, target: Checkpoint) -> dict[str, Any]:
    """The config.json, in the speculators form, of a published head."""
    layer = {key: getattr(head, key) for key in new_settings(target, 1)["transformer_layer_config"]}
    layer["model_type"] = "qwen3" if head.qk_norm else "llama"
    flags = {name: getattr(head, name) for name in FLAGS}
    return _settings(layer, flags, head.hidden_state_outputs or [], head.draft_vocab_size, target)


def _settings(
    layer: dict[str, Any], flags: dict[str, bool], places: list[int], rows: int, target: Checkpoint
) -> dict[str, Any]:
    return {
        "architectures": [SPECULATORS],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": rows,
        "target_hidden_size": target.config.hidden_size,
        **flags,
        LAYERS: places,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": None, "architectures": [architecture_name(target.config)]},
        },
        "dtype": "float16",
    }


def new_head(settings: dict[str, Any], ids: Ids, target: Checkpoint, seed: int) -> Start:
    """A head with random weights, the target's embedding, and the target's rows for its tokens.

    Raises PairError for a target whose embedding has another width than its states.
    """
    config = make_config(settings, CONFIG)
    torch.manual_seed(seed)
    head = Eagle3Head(config).float()
    embedding = _embedding(target)
    if embedding.shape[1] != config.hidden_size:
        raise PairError(
            f"{target.folder}: its embedding has {embedding.shape[1]} columns and its states {config.hidden_size}: "
            "a head is trained only for a target with as many"
        )
    with torch.no_grad():
        head.embed_tokens.weight.copy_(embedding)
        rows = read_whole(table_of(target, target.named.get_output_embeddings()))[ids]
        head.lm_head.weight.copy_(torch.from_numpy(rows))
    return Start(head, ids)


def published_head(folder: Path, target: Checkpoint) -> tuple[dict[str, Any], Start]:
    """A head to go on from, and its config.json in the speculators form. Raises MxspecError."""
    with Checkpoint(folder) as checkpoint:
        if not isinstance(checkpoint.config, Eagle3Config):
            raise PairError(f"{folder} is not an EAGLE-3 head")
        fit_head(checkpoint, target)
        head, ids = Eagle3Head(checkpoint.config).float(), target_ids(checkpoint)
        order = np.argsort(ids)
        weights = {name: torch.from_numpy(read_whole(checkpoint.tensors[name])) for name in head.state_dict()}
        weights["lm_head.weight"] = weights["lm_head.weight"][order]
        if not torch.equal(weights[_EMBEDDING], _embedding(target)):
            raise PairError(f"{folder}: has an embedding of its own, expected a head that uses the target's")
        head.load_state_dict(weights)
        return settings_of(checkpoint.config, target), Start(head, ids[order])


def write_files(
    folder: Path, settings: Mapping[str, Any], start: Start, weights: Mapping[str, Tensor], weight_format: str
) -> str:
    """Write the tensors, in fp16 or with matrices in an MX format; the text of config.json."""
    weights = {name: value.half().contiguous() for name, value in weights.items()}
    if weight_format != "fp16":
        settings = {**settings, "quantization_config": quantization_config(weights, weight_format)}
        weights = mx_matrices(weights, weight_format)
    save_file(start.tensors(weights), folder / WEIGHTS, metadata={"format": "pt"})
    return json.dumps(settings, indent=2) + "\n"


def check_replaceable(path: Path) -> None:
    """Raise BundleError for anything but a folder with a head in the speculators form."""
    try:
        found = json.loads((path / CONFIG).read_bytes())
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or SPECULATORS not in found.get("architectures", ()):
        raise BundleError(f"{path} exists and is not a head; choose another place with -o")


def _embedding(target: Checkpoint) -> Tensor:
    return torch.from_numpy(read_whole(table_of(target, target.named.get_input_embeddings())))
