"""Read the settings of MX checkpoints: `quantization_config` of compressed-tensors, of Quark or of gpt-oss.

An unknown setting is refused by its key, because ignoring it would give wrong weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from mxspec.compile.checkpoint.tensors.mx_tensor import Unpack, unpack_little_endian, unpack_nibbles, unpack_planes
from mxspec.formats.errors import UnsupportedModelError, did_you_mean

Allowed = Mapping[str, tuple[object, ...]]  # the values that a key may have, None where it may be absent; () for any


def _any(keys: str) -> Allowed:
    """Keys that may have any value."""
    return dict.fromkeys(keys.split(), ())


# compressed-tensors' keys: src/compressed_tensors/quantization/quant_config.py, quant_scheme.py and quant_args.py of
# vllm-project/compressed-tensors; compressors/model_compressors/model_compressor.py adds version and the next two.
_FORMAT = "mxfp4-pack-quantized"  # config/base.py; weight_packed and weight_scale: compressors/mxfp4/base.py
_COMPRESSED: Allowed = {
    **_any("quant_method config_groups ignore global_compression_ratio version"),
    "format": (_FORMAT,),
    "quantization_status": ("compressed",),
    "kv_cache_scheme": (None,),
    "sparsity_config": (None, {}),
    "transform_config": (None, {}),
}
_GROUP: Allowed = {
    **_any("targets weights input_activations"),
    "output_activations": (None,),
    "format": (None, _FORMAT),
}
_GROUP_WEIGHTS: Allowed = {
    **_any("zp_dtype observer observer_kwargs"),
    "num_bits": (4,),
    "type": ("float",),
    "symmetric": (True,),
    "strategy": ("group",),
    "group_size": (32,),
    "dynamic": (False,),
    "block_structure": (None,),
    "actorder": (None, "weight", "static"),  # "group" permutes the columns
    "scale_dtype": (None, "torch.uint8"),
}

# gpt-oss's keys: Mxfp4Config in transformers' utils/quantization_config.py.
_BLOCKS = _any("quant_method modules_to_not_convert dequantize")

# Quark's keys: to_dict of QConfig, QLayerConfig and QTensorConfig in quark/torch/quantization/config/config.py, and
# "export" from quark/torch/export/api.py (JsonExporterConfig), of amd-quark 0.9 to 0.13.
_QUARK: Allowed = {
    **_any(
        "quant_method version global_quant_config layer_type_quant_config layer_quant_config exclude "
        "algo_config kv_cache_post_rope quant_mode export"
    ),
    "softmax_quant_spec": (None,),
    "kv_cache_quant_config": (None, {}),
}
_EXPORT: Allowed = {
    **_any("kv_cache_group min_kv_scale weight_merge_groups"),
    "weight_format": ("real_quantized",),
    "pack_method": ("reorder", "order"),  # of integers; FP4 and FP6 have one order (quark/torch/utils/pack.py)
}
_LAYER: Allowed = {
    **_any("weight input_tensors target_device"),
    "output_tensors": (None,),
    "bias": (None,),
}
_QUARK_FORMATS = {"fp4": "mxfp4_e2m1", "fp6_e3m2": "mxfp6_e3m2", "fp6_e2m3": "mxfp6_e2m3"}
_TENSOR: Allowed = {
    **_any(
        "round_method scale_type scale_calculation_mode zero_point_type observer_cls enable_buffer_reuse "
        "max_input_numel"
    ),
    "dtype": tuple(_QUARK_FORMATS),
    "is_dynamic": (False,),
    "qscheme": ("per_group",),
    "ch_axis": (-1, 1),
    "group_size": (32,),
    "block_size": (None,),
    "symmetric": (None, True),
    "scale_format": ("e8m0",),  # to_e8m0_uint8 in quark/torch/utils/numerics.py: log2 + 127 in a uint8
    "mx_element_dtype": (None,),
    "is_scale_quant": (None, False),
}
# Methods that change weights before rounding; "rotation", "quarot" and "svdquant" would also add operations.
_ALGORITHMS = ("awq", "gptq", "gptaq", "qronos", "autoround", "smooth", "autosmoothquant")
# Pack_fp6 in quark/torch/utils/pack.py: planes in 0.9, the first that could, little endian in 0.10 to 0.13.
_PLANES, _LITTLE_ENDIAN = ("0.9",), ("0.10", "0.11", "0.12", "0.13")


@dataclass(frozen=True, slots=True)
class CodesOf:
    """The weight whose codes a tensor holds, and the tensor with its scales, by their names."""

    weight: str
    scales: str


@dataclass(frozen=True, slots=True)
class MxLayout:
    """How a checkpoint stores codes: the name of a module's `codes`, next to its `weight_scale`, and the order of bits.

    `rules` map shell patterns of module names to formats, None for a module that is not MX; the first match counts.
    `unpack` has the order of bits of each format in the rules. With `in_blocks` any weight may be codes, NAME_blocks
    and NAME_scales, whose last two and last axes are the blocks of a row and their bytes.
    """

    codes: str
    rules: tuple[tuple[str, str | None], ...]
    unpack: Mapping[str, Unpack]
    in_blocks: bool = False

    def format_of(self, module: str) -> str | None:
        """The format of a module's codes, or None if the module is not MX."""
        return next((name for pattern, name in self.rules if fnmatchcase(module, pattern)), None)

    def codes_of(self, name: str) -> CodesOf | None:
        """The weight whose codes the tensor of this name holds; None for a tensor of another kind."""
        module, _, leaf = name.rpartition(".")
        if not self.in_blocks:
            return CodesOf(f"{module}.weight", f"{module}.weight_scale") if leaf == self.codes else None
        weight = name.removesuffix(self.codes)
        return None if weight == name else CodesOf(weight, f"{weight}_scales")


def take_layout(config: PreTrainedConfig, path: Path) -> MxLayout | None:
    """Remove `quantization_config` from a configuration; return its MX layout, or None if it has none.

    `path` is the configuration's file. Raises UnsupportedModelError, naming the key, for other or unknown
    quantization.
    """
    found = getattr(config, "quantization_config", None)
    if found is None:
        return None
    del config.quantization_config
    try:
        return _read(found)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{path}: quantization_config.{error}") from None


def _read(found: object) -> MxLayout:
    readers = {"compressed-tensors": _read_compressed, "quark": _read_quark, "mxfp4": _read_blocks}
    method = found.get("quant_method") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(method, str) or method not in readers:
        expected = f"{' or '.join(readers)}, with MX weights; give the checkpoint as it was before"
        raise _refusal("quant_method", method, expected)
    return readers[method](found)


def _read_compressed(found: dict[str, Any]) -> MxLayout:
    _check(found, "", _COMPRESSED)
    for name, group in _dict(found, "config_groups", "").items():
        where = f"config_groups.{name}."
        group = _check(group, where, _GROUP)
        _check(group.get("weights"), f"{where}weights.", _GROUP_WEIGHTS)
        _check_activations(group, "input_activations", "dynamic", where)
    return MxLayout("weight_packed", (("*", "mxfp4_e2m1"),), {"mxfp4_e2m1": unpack_nibbles})


def _read_blocks(found: dict[str, Any]) -> MxLayout:
    _check(found, "", _BLOCKS)
    return MxLayout("_blocks", (("*", "mxfp4_e2m1"),), {"mxfp4_e2m1": unpack_nibbles}, in_blocks=True)


def _read_quark(found: dict[str, Any]) -> MxLayout:
    _check(found, "", _QUARK)
    _check(found.get("export"), "export.", _EXPORT)
    _check_algorithms(found.get("algo_config"))
    exclude = found.get("exclude") or []
    if not isinstance(exclude, list) or not all(isinstance(pattern, str) for pattern in exclude):
        raise _refusal("exclude", exclude, "a list of patterns")
    rules: list[tuple[str, str | None]] = [(pattern, None) for pattern in exclude]
    for name, layer in _dict(found, "layer_quant_config", "").items():
        rules.append((name, _quark_format(layer, f"layer_quant_config.{name}.")))
    types = _check(_dict(found, "layer_type_quant_config", ""), "layer_type_quant_config.", {"Linear": ()})
    where = "layer_type_quant_config.Linear." if types else "global_quant_config."
    rules.append(("*", _quark_format(types.get("Linear", found.get("global_quant_config")), where)))
    formats = {name for _, name in rules if name is not None}
    return MxLayout("weight", tuple(rules), dict(_quark_orders(formats, found.get("version"))))


def _quark_format(layer: object, where: str) -> str | None:
    found = _check(layer, where, _LAYER)
    _check_activations(found, "input_tensors", "is_dynamic", where)
    if found.get("weight") is None:
        return None
    return _QUARK_FORMATS[_check(found["weight"], f"{where}weight.", _TENSOR)["dtype"]]


def _quark_orders(formats: set[str], version: object) -> Iterator[tuple[str, Unpack]]:
    release = re.fullmatch(r"(\d+\.\d+)(\.\d+)*(\.post\d+)?(\+.*)?", str(version))
    number = release.group(1) if release else None
    for name in formats:
        if name == "mxfp4_e2m1":
            yield name, unpack_nibbles
        elif number in _PLANES or number in _LITTLE_ENDIAN:
            yield name, unpack_planes if number in _PLANES else unpack_little_endian
        else:
            known = ", ".join(_PLANES + _LITTLE_ENDIAN)
            raise _refusal("version", version, f"one of {known}: Quark's order of FP6 bits depends on it")


def _check_algorithms(found: object) -> None:
    for algorithm in found if isinstance(found, list) else [found] if found else []:
        name = algorithm.get("name") if isinstance(algorithm, dict) else algorithm
        if name not in _ALGORITHMS:
            raise _refusal("algo_config.name", name, f"one of {', '.join(_ALGORITHMS)}")


def _check_activations(found: dict[str, Any], key: str, dynamic: str, where: str) -> None:
    """Ignore settings for rounding activations, unless they store data in the checkpoint."""
    value = found.get(key)
    if value is not None and not (isinstance(value, dict) and value.get(dynamic) is True):
        raise _refusal(f"{where}{key}", value, f"none, or {dynamic} true")


def _check(found: object, where: str, allowed: Allowed) -> dict[str, Any]:
    """Check that all keys of `found` are known and have allowed values."""
    if not isinstance(found, dict):
        raise _refusal(where.removesuffix("."), found, "an object")
    for key in found:
        if key not in allowed:
            raise _refusal(f"{where}{key}", found[key], f"no such key{did_you_mean(str(key), allowed)}")
    for key, values in allowed.items():
        if values and found.get(key) not in values:
            expected = " or ".join("none" if value is None else repr(value) for value in values)
            raise _refusal(f"{where}{key}", found.get(key), expected)
    return found


def _dict(found: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value = found.get(key)
    if value is not None and not isinstance(value, dict):
        raise _refusal(f"{where}{key}", value, "an object")
    return value or {}


def _refusal(key: str, got: object, expected: str) -> UnsupportedModelError:
    shown = "none" if got is None else repr(got)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return UnsupportedModelError(f"{key}: got {shown}, expected {expected}")
