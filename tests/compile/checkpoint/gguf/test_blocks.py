"""Every type of blocks against the `gguf` package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from mxspec.compile.checkpoint.gguf.blocks import BLOCK_TYPES, UNSUPPORTED_TYPES
from mxspec.compile.checkpoint.tensors.mx_tensor import unpack_halves
from mxspec.formats.tiles import dequantize as dequantize_mx

SCALES = ("d", "m", "dmin")


@pytest.mark.parametrize("number", BLOCK_TYPES)
def test_values_are_those_of_the_package(number: int) -> None:
    kind, rng = BLOCK_TYPES[number], np.random.default_rng(number)
    their = gguf.GGMLQuantizationType(number)
    assert (kind.name, kind.elements, kind.bytes) == (their.name, *gguf.GGML_QUANT_SIZES[their])
    data = rng.integers(0, 256, (5, 24 * kind.bytes), dtype=np.uint8)
    blocks = data.reshape(-1).view(kind.layout)
    for name in {*SCALES} & {*(kind.layout.names or ())}:
        blocks[name] = rng.normal(size=len(blocks)).astype(np.float16)
    if kind.name == "MXFP4":
        blocks["e"] = rng.integers(0, 255, len(blocks))
    if kind.elements == 1:
        data = rng.normal(size=(5, 48)).astype({"F32": "<f4", "F16": "<f2", "BF16": "<f4"}[kind.name]).view(np.uint8)
    values, expected = kind.decode(data), dequantize(data, their)
    assert values.dtype == np.float32
    assert np.array_equal(values, np.asarray(expected, np.float32).reshape(values.shape), equal_nan=True)


def test_codes_of_mxfp4_are_ours() -> None:
    """Byte j of a block holds elements j and j + 16; scales 0 to 254 are powers of two from -127."""
    kind = next(kind for kind in BLOCK_TYPES.values() if kind.name == "MXFP4")
    rng = np.random.default_rng(0)
    data = rng.integers(0, 255, (3, 2 * kind.bytes), dtype=np.uint8)
    blocks = data.reshape(-1).view(kind.layout)
    codes = unpack_halves(np.ascontiguousarray(blocks["qs"]).reshape(3, -1))
    scales = np.ascontiguousarray(blocks["e"]).reshape(3, -1)
    assert np.array_equal(dequantize_mx(codes, scales, "e2m1"), kind.decode(data))


def test_all_types_of_the_package_are_known_or_refused_by_name() -> None:
    theirs = {number.value: number.name for number in gguf.GGMLQuantizationType}
    named = {number: kind.name for number, kind in BLOCK_TYPES.items()} | UNSUPPORTED_TYPES
    assert {number: named.get(number) for number in theirs} == theirs
