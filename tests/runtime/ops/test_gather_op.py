"""PackedGather through ONNX Runtime: the rows that the codec unpacks, for any ids, and errors instead of crashes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from mxspec.formats.tiles import pack_values, unpack_values
from mxspec.formats.weight_format import ELEMENTS, WEIGHT_FORMATS, packed_shape
from tests.runtime.ops.one_node import ERRORS, open_node

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Ids = NDArray[np.int64]
EVERY_FORMAT = pytest.mark.parametrize("weight_format", WEIGHT_FORMATS)
Refused = ERRORS.InvalidArgument


class PackedGather:
    """Rows of a packed matrix through ONNX Runtime."""

    def __init__(self, weight_format: str, n: int, k: int, *, ids_type: int = TensorProto.INT64) -> None:
        types = {"ids": ids_type, "B": TensorProto.UINT8}
        self.session = open_node("PackedGather", list(types), types=types, K=k, N=n, format=weight_format)

    def __call__(self, ids: Ids, packed: Bytes) -> Floats:
        out: Floats = self.session.run(None, {"ids": ids, "B": packed})[0]
        return out


def random_matrix(weight_format: str, n: int, k: int, seed: int = 0) -> tuple[Bytes, Floats]:
    """A packed matrix, and the float32[n, k] that it stands for."""
    values = np.random.default_rng(seed).standard_normal((n, k), np.float32)
    packed = pack_values(values, weight_format).data
    return packed, unpack_values(packed, weight_format, n, k)


@EVERY_FORMAT
def test_rows_are_those_that_the_codec_unpacks(weight_format: str) -> None:
    """Shapes at random, whole tiles and cut ones, ids in any order and number, from either of many threads."""
    random = np.random.default_rng(3)
    for seed in range(40):
        n, k = (int(size) for size in random.integers(1, (70, 200)))
        packed, rows = random_matrix(weight_format, n, k, seed)
        ids = random.integers(0, n, int(random.integers(0, 400)))
        found = PackedGather(weight_format, n, k)(ids, packed)
        assert found.tobytes() == rows[ids].tobytes(), (n, k)


@pytest.mark.parametrize("weight_format", [element.name for element in ELEMENTS.values()])
def test_any_bytes_are_read_as_the_codec_reads_them(weight_format: str) -> None:
    """Codes and scales that no codec writes: subnormals, overflow, NaN."""
    n, k = 400, 96
    packed = np.random.default_rng(1).integers(0, 256, packed_shape(weight_format, n, k)).astype(np.uint8)
    rows = unpack_values(packed, weight_format, n, k)
    assert np.isnan(rows).any()
    found = PackedGather(weight_format, n, k)(np.arange(n), packed)
    np.testing.assert_array_equal(found, rows)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(rows))


def test_the_result_has_the_shape_of_the_ids_and_a_row_more() -> None:
    packed, rows = random_matrix("mxfp6_e2m3", 20, 40)
    gather = PackedGather("mxfp6_e2m3", 20, 40)
    for shape in [(), (1, 3), (2, 3, 4), (0,), (2, 0), (1, 2, 1, 2, 1, 2, 1)]:
        ids = np.random.default_rng(0).integers(0, 20, shape)
        assert gather(np.asarray(ids, np.int64), packed).tobytes() == rows[ids].tobytes()
        assert gather(np.asarray(ids, np.int64), packed).shape == (*shape, 40)
    with pytest.raises(Refused, match="expected at most 7 dimensions"):
        gather(np.zeros((1,) * 8, np.int64), packed)


@pytest.mark.parametrize("wrong", [-1, 33, 47, 2**40, -(2**63)])
def test_ids_outside_the_matrix_are_refused(wrong: int) -> None:
    """Those that the last tile has room for, too, and negative ones, which Gather would count from the end."""
    packed, _ = random_matrix("fp16_tiles", 33, 40)
    with pytest.raises(Refused, match=rf"mxspec\.PackedGather: ids: got {wrong}, expected 0 to 32"):
        PackedGather("fp16_tiles", 33, 40)(np.array([0, wrong]), packed)


@EVERY_FORMAT
def test_wrong_tiles_are_refused(weight_format: str) -> None:
    rows, width = packed_shape(weight_format, 40, 64)
    for shape in [(rows - 1, width), (rows, width - 1), (rows + 1, width), (rows * width,), (1, rows, width)]:
        with pytest.raises(Refused, match=rf"B: got shape .*, expected \[{rows}, {width}\] for N = 40, K = 64"):
            PackedGather(weight_format, 40, 64)(np.array([0]), np.zeros(shape, np.uint8))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("mxfp5", 16, 32), 'attribute format: got "mxfp5", expected one of fp16_tiles, mxfp6_e3m2'),
        (("fp16_tiles", 0, 32), r"attribute N: got 0, expected 1 to 2\^30"),
        (("fp16_tiles", 16, 2**31), "attribute K: got 2147483648"),
    ],
)
def test_wrong_attributes_are_refused(settings: tuple[str, int, int], message: str) -> None:
    with pytest.raises(ERRORS.RuntimeException, match=message):
        PackedGather(*settings)


def test_ids_of_another_type_are_refused() -> None:
    with pytest.raises(ERRORS.InvalidGraph, match="int32"):
        PackedGather("fp16_tiles", 16, 32, ids_type=TensorProto.INT32)
