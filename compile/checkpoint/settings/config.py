"""Read a checkpoint's config.json: its settings, but never a choice of code to run."""

from __future__ import annotations

import inspect
import json
import math
import re
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mxspec.compile.checkpoint.settings.architecture import ONLY_PLAIN, require_plain_decoder
from mxspec.compile.heads.eagle3 import head_settings
from mxspec.compile.heads.mtp import mtp_settings
from mxspec.formats.errors import CheckpointError, UnsupportedModelError
from mxspec.formats.validation import parse_json, shorten

CONFIG = "config.json"
CONFIG_LIMIT = 16 << 20  # bytes; real ones have a few thousand

# Labels of classifiers (num_labels: 10**9 would fill the memory), and keys that do not describe the model.
_NO_SETTINGS = (
    *("auto_map", "trust_remote_code", "id2label", "label2id", "num_labels", "name_or_path", "problem_type"),
    "untied_parameters",  # the tensors show it
)
_DISPATCH = ("_implementation", "_plan")  # the ends of keys that choose code, such as attn_implementation
_LARGEST = {"num_hidden_layers": 512, "max_position_embeddings": (1 << 31) - 1} | dict.fromkeys(
    ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size"),
    1 << 24,
)
_OF_STATE_SPACES = ("time_step_", "mamba_")  # the beginnings of keys that only state-space layers read
_SAME_AS = {"mimo": "qwen2"}  # types that transformers lacks, by those whose decoder they are
_ANNOUNCED = re.compile(r"^(Class validation error for validator|Validation error for field) '\w+': (\w+Error: )?")
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")


def load_config(checkpoint_dir: Path) -> PreTrainedConfig:
    """The checkpoint's configuration, without keys that choose or run code.

    Raises CheckpointError if it is missing or invalid, UnsupportedModelError if transformers does not have the model or
    the model has an architecture that is not supported.
    """
    path = checkpoint_dir / CONFIG
    return make_config(read_settings(path), str(path))


def load_mtp_config(checkpoint_dir: Path) -> PreTrainedConfig:
    """The configuration of the MTP layer of a checkpoint. Raises as load_config."""
    path = checkpoint_dir / CONFIG
    return make_config(mtp_settings(read_settings(path), str(path)), str(path))


def read_settings(path: Path) -> dict[str, Any]:
    """The object in a config.json. Raises CheckpointError for anything else."""
    try:
        if not path.is_file():
            raise CheckpointError(f"no {path.name} in {path.parent}: expected a transformers checkpoint directory")
        if path.stat().st_size > CONFIG_LIMIT:
            raise CheckpointError(f"{path}: {path.stat().st_size} bytes, at most {CONFIG_LIMIT} expected")
        text = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    found = parse_json(text, str(path), CheckpointError, finite=False)
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: expected an object with a model_type, got {shorten(found)}")
    return found


def make_config(settings: dict[str, Any], where: str) -> PreTrainedConfig:
    """transformers' configuration of these settings; `where` names their file in errors. Raises as load_config."""
    settings = PreTrainedConfig._decode_special_floats(settings)  # {"__float__": "Infinity"}, as transformers writes it
    _refuse_infinite(settings, where)
    settings = head_settings(settings, where) or settings
    if (same := _SAME_AS.get(str(settings.get("model_type")))) is not None:
        settings = {**settings, "model_type": same}
    kind = _class_of(settings, where)
    kept = _without_dispatch(settings)
    for key in kept:
        part = inspect.getattr_static(kind, key, None)
        if callable(part) or isinstance(part, classmethod | staticmethod) or key in ("attribute_map", "sub_configs"):
            raise CheckpointError(f"{where}: {shorten(key)} is not a setting, but a part of transformers' own class")
    _check_sizes(kept, kind.attribute_map, where)
    if not isinstance(found := kept.get("quantization_config"), dict | None):
        raise CheckpointError(f"{where}: quantization_config: got {shorten(found)}, expected an object")
    try:
        config: PreTrainedConfig = kind.from_dict(kept)
    except Exception as error:  # transformers' checks have no common base, and some values pass them and fail later
        raise CheckpointError(f"{where}: {one_line(error)}") from None
    require_plain_decoder(config)
    text = _text_half(config)
    _check_layers(text, where)
    _check_heads(config, where)
    _check_functions(config, where)
    return text


def _text_half(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of the language model in a checkpoint that also reads images; else the configuration itself."""
    text = getattr(config, "text_config", None)
    if not isinstance(text, PreTrainedConfig):
        return config
    text.tie_word_embeddings = getattr(config, "tie_word_embeddings", text.tie_word_embeddings)  # transformers does so
    return text


def one_line(error: Exception) -> str:
    """The message of an error of transformers in one line, without its lists of known values."""
    text = " ".join(str(error).split()) or type(error).__name__
    return _ANNOUNCED.sub("", text.split(" Model type should be one of")[0])[:200]


def _class_of(settings: dict[str, Any], where: str) -> type[PreTrainedConfig]:
    """The class of the model type, found before transformers sees the settings, so that they choose no code."""
    model_type = settings.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{where}: model_type: got {shorten(model_type)}, expected the name of an architecture")
    if model_type == "mistral" and "layer_types" in settings:
        model_type = "ministral"  # as in AutoConfig
    if model_type not in CONFIG_MAPPING:
        own = "; the code that the checkpoint brings is never run" if "auto_map" in settings else ""
        raise UnsupportedModelError(f"{where}: transformers has no model type {shorten(model_type)}{own}")
    kind: type[PreTrainedConfig] = CONFIG_MAPPING[model_type]
    return kind


def _without_dispatch(settings: Any) -> Any:
    """The settings, also of models inside, without keys that choose code or hold transformers' own state."""
    if not isinstance(settings, dict):
        return settings
    return {
        key: _without_dispatch(value)
        for key, value in settings.items()
        if not key.startswith("_") and not key.endswith(_DISPATCH) and key not in _NO_SETTINGS
    }


def _refuse_infinite(value: Any, where: str, key: str = "") -> None:
    """Raise CheckpointError for infinities and NaN, except in keys of layers that are not supported."""
    if isinstance(value, dict):
        for name, part in value.items():
            _refuse_infinite(part, where, name)
    elif isinstance(value, list):
        for part in value:
            _refuse_infinite(part, where, key)
    elif isinstance(value, float) and not math.isfinite(value) and not key.startswith(_OF_STATE_SPACES):
        raise CheckpointError(f"{where}: {key}: got {shorten(json.dumps(value))}, expected a finite number")


def _check_sizes(settings: dict[str, Any], names: dict[str, str], where: str) -> None:
    """Raise CheckpointError for impossible sizes; `names` are the architecture's own names of some sizes."""
    for key, largest in _LARGEST.items():
        for name in dict.fromkeys((key, names.get(key, key))):
            value = settings.get(name)
            if value is None or isinstance(value, list):  # missing, or one for each layer
                continue
            if type(value) is not int or not 1 <= value <= largest:
                raise CheckpointError(f"{where}: {name}: got {shorten(value)}, expected 1 to {largest}")


def _check_layers(config: PreTrainedConfig, where: str) -> None:
    """Raise UnsupportedModelError if layers have heads of different sizes (Gemma 4): caches have one size."""
    if not getattr(config, "is_heterogeneous", False):
        return
    for key in ("head_dim", "num_key_value_heads"):
        values = {getattr(layer, key, None) or 0 for layer in config.per_layer_config}
        if len(values) > 1:
            raise UnsupportedModelError(
                f"{where}: {config.model_type} is a model whose layers have different heads ({key}: "
                f"{' and '.join(map(str, sorted(values)))}): {ONLY_PLAIN}"
            )


def _check_heads(config: PreTrainedConfig, where: str) -> None:
    hidden, heads, kv_heads = (
        getattr(config, key, None) for key in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    if not isinstance(heads, int):
        return
    if isinstance(hidden, int) and getattr(config, "head_dim", None) is None and hidden % heads:
        raise CheckpointError(f"{where}: num_attention_heads: {heads} heads do not divide hidden_size {hidden}")
    if isinstance(kv_heads, int) and heads % kv_heads:
        raise CheckpointError(f"{where}: num_key_value_heads: {kv_heads} do not divide {heads} attention heads")


def _check_functions(config: PreTrainedConfig, where: str) -> None:
    architectures = config.architectures or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise CheckpointError(f"{where}: architectures: got {shorten(architectures)}, expected a list of names")
    for key in _ACTIVATIONS:
        value = getattr(config, key, None)
        if value is not None and (not isinstance(value, str) or value not in ACT2FN):
            raise CheckpointError(f"{where}: {key}: transformers has no function {shorten(value)}")
    _check_rope(getattr(config, "rope_parameters", None), where)


def _check_rope(parameters: Any, where: str) -> None:
    """Check the parameters of one rope, or of one for each kind of layer."""
    if not isinstance(parameters, dict):
        return
    for value in parameters.values():
        _check_rope(value, where)
    kind = parameters.get("rope_type", "default")
    if kind != "default" and (not isinstance(kind, str) or kind not in ROPE_INIT_FUNCTIONS):
        known = ", ".join(["default", *ROPE_INIT_FUNCTIONS])
        raise CheckpointError(f"{where}: rope_type: got {shorten(kind)}, expected one of {known}")
