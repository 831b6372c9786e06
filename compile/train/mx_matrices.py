"""A head's matrices in MXFP6, in the layout of AMD Quark 0.13, which speccompile packs as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mxspec.formats.arrays import as_bits
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
