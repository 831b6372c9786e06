"""Merge a LoRA adapter in PEFT's format into a checkpoint's weights as PEFT 0.21 does, or refuse it by name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from mxspec.compile.checkpoint.names import rename, tied_names
from mxspec.compile.checkpoint.settings.architecture import architecture_name
from mxspec.compile.checkpoint.settings.config import read_settings
from mxspec.compile.checkpoint.tensors.derived import LowRank, MergedTensor
from mxspec.compile.checkpoint.tensors.pickled_shard import open_pickle
from mxspec.compile.checkpoint.tensors.tensor import CheckpointTensor, Tensor, Tensors, open_shard
from mxspec.compile.checkpoint.tensors.weight_files import PICKLES_ADVICE
from mxspec.compile.checkpoint.ties import same_values
from mxspec.formats.errors import CheckpointError, UnsupportedModelError
from mxspec.formats.validation import shorten

ADAPTER_FILES = ADAPTER_CONFIG, ADAPTER_WEIGHTS, ADAPTER_PICKLE = (
    "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin",
)  # fmt: skip

_KEY = re.compile(r"base_model\.model\.(.+)\.(lora_A|lora_B|base_layer)\.weight")
# Keys that are read here, and keys without effect on the merged weights; any other key must be empty.
_KNOWN = {
    "peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "bias", "init_lora_weights",
    "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "fan_in_fan_out", "lora_dropout",
    "task_type", "base_model_name_or_path", "revision", "inference_mode", "auto_mapping", "peft_version",
    "megatron_core", "runtime_config", "eva_config", "qalora_group_size", "ensure_weight_tying",
}  # fmt: skip
_KEEP_THE_BASE = (True, False, "gaussian", "eva", "orthogonal")  # other first values of A and B change W as well
_ADVICE = "merge it with PEFT's merge_and_unload, and give what that saves"


def merge_adapter(
    tensors: Tensors, model: PreTrainedModel, folder: Path, files: ExitStack, from_pickle: bool
) -> dict[str, Tensor]:
    """The tensors with the changes of the adapter in `folder`; the adapter's file stays open until `files` closes.

    An adapter without safetensors may be read `from_pickle`. Raises CheckpointError if the adapter is damaged or does
    not fit, UnsupportedModelError if it is not plain LoRA.
    """
    settings = _read_config(folder / ADAPTER_CONFIG)
    found, _ = rename(model, list(tensors))
    merged = dict(tensors)
    for module, parts in _read_parts(folder, files, from_pickle).items():
        a, b = parts["lora_A"], parts["lora_B"]
        where = f"{folder}: {module}"
        parameter = _parameter_of(model, module, where)
        if parameter not in found:
            raise CheckpointError(f"{where}: the checkpoint has no tensor of its own for {parameter}")
        base = tensors[found[parameter]]
        if not isinstance(base, CheckpointTensor):
            raise UnsupportedModelError(
                f"{where}: its weight is rounded to blocks already, and would be rounded a second time; give the "
                "checkpoint that the adapter was trained on"
            )
        if "base_layer" in parts and not same_values(base, parts["base_layer"]):
            raise UnsupportedModelError(f"{where}: the adapter brings a weight of its own for it: {_ADVICE}")
        owner = parameter.rpartition(".")[0]
        transposed = isinstance(model.get_submodule(owner), Conv1D)
        _check_shapes(base, a, b, transposed, where)
        update = LowRank(a, b, _scale(settings, owner, a.shape[0], folder / ADAPTER_CONFIG))
        merged[base.name] = MergedTensor(base, update, transposed)
    return merged


def _read_config(path: Path) -> dict[str, Any]:
    """The settings, of plain LoRA only."""
    settings = read_settings(path)
    if settings.get("peft_type") != "LORA":
        raise UnsupportedModelError(f"{path}: peft_type: got {shorten(settings.get('peft_type'))}, expected 'LORA'")
    strange = [key for key, value in settings.items() if key not in _KNOWN and value]
    for key, plain in (("bias", ("none",)), ("init_lora_weights", _KEEP_THE_BASE)):
        if settings.get(key, plain[0]) not in plain:
            strange.append(key)
    if strange:
        value = shorten(settings[strange[0]])
        raise UnsupportedModelError(f"{path}: {shorten(strange[0])}: {value} is more than plain LoRA: {_ADVICE}")
    return settings


def _read_parts(folder: Path, files: ExitStack, from_pickle: bool) -> dict[str, dict[str, CheckpointTensor]]:
    """By module, its lora_A and lora_B, and the base_layer that PEFT writes for a head."""
    path, read = folder / ADAPTER_WEIGHTS, open_shard
    if not path.is_file():
        path, read = folder / ADAPTER_PICKLE, open_pickle
        if not path.is_file():
            raise CheckpointError(f"{folder}: no {ADAPTER_WEIGHTS}")
        if not from_pickle:
            raise CheckpointError(f"{folder}: {PICKLES_ADVICE}")
    parts: dict[str, dict[str, CheckpointTensor]] = {}
    for name, tensor in read(path, files).items():
        key = _KEY.fullmatch(name)
        if key is None:
            raise UnsupportedModelError(f"{path}: tensor {name!r} is not of plain LoRA on a linear layer: {_ADVICE}")
        parts.setdefault(key[1], {})[key[2]] = tensor
    if not parts:
        raise CheckpointError(f"{path}: no tensors")
    if alone := [module for module, found in parts.items() if not {"lora_A", "lora_B"} <= found.keys()]:
        raise CheckpointError(f"{path}: {alone[0]} lacks lora_A or lora_B")
    return parts


def _parameter_of(model: PreTrainedModel, module: str, where: str) -> str:
    """The weight of a module, under today's name."""
    names, _ = rename(model, [f"{module}.weight"])
    if not names:
        raise CheckpointError(f"{where}: {architecture_name(model.config)} has no such layer; is it the right base?")
    parameter = next(iter(names))
    if len(tied_names(model)[parameter]) > 1:
        raise UnsupportedModelError(f"{where}: its weight is tied, and one of the two alone would change: {_ADVICE}")
    return parameter


def _check_shapes(
    base: CheckpointTensor, a: CheckpointTensor, b: CheckpointTensor, transposed: bool, where: str
) -> None:
    n, k = base.shape[::-1] if transposed else base.shape
    r = a.shape[0] if a.shape else 0
    if r < 1 or a.shape != (r, k) or b.shape != (n, r):
        raise CheckpointError(
            f"{where}: lora_A {list(a.shape)} and lora_B {list(b.shape)}, expected [r, {k}] and [{n}, r]: the adapter "
            "belongs to another checkpoint"
        )


def _scale(settings: Mapping[str, Any], module: str, rank: int, path: Path) -> float:
    """alpha / r, or alpha / √r for rsLoRA; as in PEFT, a pattern that matches the end of a module's name wins."""
    r = _setting(settings, "r", "rank_pattern", module, path)
    alpha = _setting(settings, "lora_alpha", "alpha_pattern", module, path)
    if r != rank:
        raise CheckpointError(f"{path}: {module} has rank {r:g}, but its lora_A has {rank} rows")
    return alpha / (math.sqrt(r) if settings.get("use_rslora") else r)


def _setting(settings: Mapping[str, Any], key: str, patterns: str, module: str, path: Path) -> float:
    value = settings.get(key, 8)  # PEFT's default for both
    try:
        for pattern, other in (settings.get(patterns) or {}).items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                value = other
                break
    except (AttributeError, re.error):
        raise CheckpointError(f"{path}: {patterns}: expected an object of patterns and numbers") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < abs(value) < 1e9:
        raise CheckpointError(f"{path}: {key} of {module}: got {shorten(value)}, expected a number")
    return float(value)
