"""Kernel tiles against the layout as docs/formats.md describes it, bit by bit; one pass against two steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mxspec.formats.native import available_isas
from mxspec.formats.tiles import (
    PackStatistics,
    dequantize,
    pack,
    pack_values,
    quantize,
    unpack,
    unpack_fp16,
    unpack_values,
)
from mxspec.formats.weight_format import ELEMENTS, FP16_TILES, WEIGHT_FORMATS, packed_shape

LARGEST_ERRORS = {"fp16_tiles": 4e-4, "mxfp6_e3m2": 0.08, "mxfp6_e2m3": 0.04, "mxfp4_e2m1": 0.16, "mxint8": 0.01}
SHAPES = [(1, 1), (16, 32), (17, 33), (31, 64), (48, 45), (5, 200)]
E3M2 = "mxfp6_e3m2"
DTYPES = ["float32", "float16", "bfloat16"]


def random_codes(n: int, k: int, element: str = "e3m2") -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    rng = np.random.default_rng(n * 1000 + k)
    codes = rng.integers(0, 1 << ELEMENTS[element].bits, (n, k), np.uint8)
    return codes, rng.integers(0, 256, (n, -(-k // 32)), np.uint8)


def widen(values: NDArray[Any]) -> NDArray[np.float32]:
    """float32 of float32, float16, or the bit patterns of bfloat16."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return values.astype(np.float32)


def random_values(n: int, k: int, dtype: str) -> NDArray[Any]:
    """Normal values of many sizes, some zeros of both signs, one block of one row all zero."""
    rng = np.random.default_rng(n * 1000 + k)
    values = rng.standard_normal((n, k)) * 2.0 ** rng.integers(-20, 3, (n, 1))
    values[rng.random((n, k)) < 0.05] *= 0
    values[0, :32] = 0
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def code_bits(row: int, column: int) -> list[tuple[int, int]]:
    """Where the six bits of a code lie in its 384-byte tile: (byte, bit), the lowest bit first."""
    half, vector = divmod(column // 4, 4)
    lane = 4 * row + (0, 2, 1, 3)[column % 4]
    if vector < 3:
        return [(half * 192 + vector * 64 + lane, bit) for bit in range(6)]
    return [(half * 192 + run * 64 + lane, 6 + bit) for run in range(3) for bit in range(2)]


def test_every_code_bit_of_a_tile_has_its_own_place() -> None:
    places = [place for row in range(16) for column in range(32) for place in code_bits(row, column)]
    assert sorted(places) == [(byte, bit) for byte in range(384) for bit in range(8)]


@pytest.mark.parametrize(("n", "k"), [(16, 32), (17, 33), (40, 100)])
def test_bits_are_at_the_places_of_the_layout(n: int, k: int, isa: str) -> None:
    codes, scales = random_codes(n, k)
    packed = pack(codes, scales)
    blocks = -(-k // 32)
    wanted = np.zeros((-(-n // 16), blocks * 400), np.uint8)
    for row in range(n):
        for column in range(k):
            for bit, (byte, place) in enumerate(code_bits(row % 16, column % 32)):
                wanted[row // 16, column // 32 * 384 + byte] |= (int(codes[row, column]) >> bit & 1) << place
        for block in range(blocks):
            wanted[row // 16, blocks * 384 + block * 16 + row % 16] = scales[row, block]
    np.testing.assert_array_equal(packed, wanted)  # zeros beyond n and k included


def test_the_worked_example_of_the_document() -> None:
    """docs/formats.md: the code of row 3, column 13 in a tile of zeros."""
    codes, scales = np.zeros((16, 32), np.uint8), np.zeros((16, 1), np.uint8)
    codes[3, 13], scales[3, 0] = 0b101101, 120
    packed = pack(codes, scales)[0]
    assert {int(byte): int(packed[byte]) for byte in np.flatnonzero(packed)} == {
        14: 0x40,
        78: 0xC0,
        142: 0x80,
        387: 120,
    }


@pytest.mark.parametrize(("element", "tile"), [("e3m2", 400), ("e2m3", 400), ("e2m1", 272), ("int8", 528)])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_unpack_gives_back_what_was_packed(n: int, k: int, element: str, tile: int, isa: str) -> None:
    codes, scales = random_codes(n, k, element)
    packed = pack(codes, scales, element)
    assert packed.shape == packed_shape(ELEMENTS[element].name, n, k) == (-(-n // 16), -(-k // 32) * tile)
    again, again_scales = unpack(packed, n, k, element)
    np.testing.assert_array_equal(again, codes)
    np.testing.assert_array_equal(again_scales, scales)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("element", "rounding"), [("e3m2", "even"), ("e3m2", "away"), ("e2m3", "even"), ("e2m1", "away"), ("int8", "even")]
)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_one_pass_equals_two_steps(
    n: int, k: int, element: str, rounding: str, dtype: str, transpose: bool, isa: str
) -> None:
    values = random_values(n, k, dtype)
    given = np.ascontiguousarray(values.T) if transpose else values
    packed = pack_values(given, ELEMENTS[element].name, transpose, rounding=rounding, dtype=dtype)
    codes, scales = quantize(widen(values), element, rounding)
    np.testing.assert_array_equal(packed.data, pack(codes, scales, element))

    exact = widen(values).astype(np.float64)
    difference = exact - dequantize(codes, scales, element)
    assert packed.statistics.squared_norm == pytest.approx((exact**2).sum(), rel=1e-6)
    assert packed.statistics.squared_error == pytest.approx((difference**2).sum(), rel=1e-6)
    assert packed.statistics.underflow == ((exact != 0) & (dequantize(codes, scales, element) == 0)).sum()
    assert packed.statistics.nonfinite == packed.statistics.overflow == 0


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_fp16_tiles_hold_the_rounded_values(n: int, k: int, dtype: str, transpose: bool, isa: str) -> None:
    values = random_values(n, k, dtype)
    packed = pack_values(np.ascontiguousarray(values.T) if transpose else values, FP16_TILES, transpose, dtype=dtype)
    wanted = np.zeros((-(-n // 16) * 16, -(-k // 32) * 32), np.float16)
    wanted[:n, :k] = widen(values).astype(np.float16)
    tiles = wanted.reshape(-1, 16, wanted.shape[1]).swapaxes(1, 2)  # [row tile][column][row]
    np.testing.assert_array_equal(packed.data, np.ascontiguousarray(tiles).view(np.uint8).reshape(len(tiles), -1))
    np.testing.assert_array_equal(unpack_fp16(packed.data, n, k).view(np.uint16), wanted[:n, :k].view(np.uint16))
    exact = widen(values).astype(np.float64)
    error = ((exact - wanted[:n, :k].astype(np.float64)) ** 2).sum()
    assert packed.statistics.squared_error == pytest.approx(error, rel=1e-9)
    assert packed.statistics.squared_norm == pytest.approx((exact**2).sum(), rel=1e-9)


def test_every_half_is_read_and_every_kind_of_float_is_rounded_to_half(isa: str) -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    same = unpack_fp16(pack_values(halves, FP16_TILES).data, 256, 256).view(np.uint16)
    is_nan = np.isnan(halves)
    np.testing.assert_array_equal(same[~is_nan], halves.view(np.uint16)[~is_nan])
    np.testing.assert_array_equal(same[is_nan], halves.view(np.uint16)[is_nan] | 0x0200)  # NaN comes out quiet

    around = halves.astype(np.float32).view(np.uint32)[:, :, None] + np.array([0, 1, 0x0FFF, 0x1000, 0x1001], np.uint32)
    floats = around.view(np.float32).reshape(256, -1)
    floats = np.where(np.isnan(floats), np.float32(0), floats)
    with np.errstate(over="ignore"):
        wanted = floats.astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(
        unpack_fp16(pack_values(floats, FP16_TILES).data, *floats.shape).view(np.uint16), wanted
    )


def test_values_beyond_fp16_are_counted(isa: str) -> None:
    values = np.zeros((3, 40), np.float32)
    values[0, :6] = [65504, -65504.004, 65519.99, 65520, -3e38, 1]
    values[1, :5] = [np.nan, np.inf, -np.inf, 2**-25, 2**-24]
    values[2, 30:34] = [1e-30, -1e-45, -0.0, 0.0]
    packed = pack_values(values, FP16_TILES)
    assert packed.statistics.overflow == 4
    assert packed.statistics.nonfinite == 3
    assert packed.statistics.underflow == 3
    assert packed.statistics.squared_norm == pytest.approx(65504.0**2 + 1, rel=1e-12)
    bits = unpack_fp16(packed.data, 3, 40).view(np.uint16)
    assert bits[0, :6].tolist() == [0x7BFF, 0xFBFF, 0x7BFF, 0x7C00, 0xFC00, 0x3C00]


def test_values_that_are_not_finite_are_counted(isa: str) -> None:
    values = np.ones((20, 70), np.float32)
    values[18, [0, 69]] = np.nan, np.inf
    values[2, 33] = -np.inf
    packed = pack_values(values, E3M2)
    assert packed.statistics == PackStatistics(0.0, 20 * 70 - 32 - 6 - 32, 3, 0, 0)
    assert (unpack(packed.data, 20, 70)[1] == 255).sum() == 3


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_row_ranges_make_up_the_whole(dtype: str, transpose: bool) -> None:
    values = random_values(75, 130, dtype)
    given = np.ascontiguousarray(values.T) if transpose else values
    for name in (E3M2, FP16_TILES):
        whole = pack_values(given, name, transpose, dtype=dtype)
        out = np.full_like(whole.data, 0xAA)
        total = PackStatistics()
        for begin, end in [(0, 16), (16, 64), (64, 75)]:
            part = out[begin // 16 : -(-end // 16)]
            made = pack_values(given, name, transpose, dtype=dtype, rows=(begin, end), out=part)
            assert made.data is part
            total += made.statistics
        np.testing.assert_array_equal(out, whole.data)
        assert total.relative_error == pytest.approx(whole.relative_error, rel=1e-12)
        assert total.underflow == whole.statistics.underflow


def test_rows_may_have_a_stride() -> None:
    wide = random_values(40, 300, "float16")
    for rows, transpose in [(wide[:, 7:140], False), (wide[:, 7:140], True), (wide[::3], False)]:
        copied = np.ascontiguousarray(rows.T if transpose else rows)
        np.testing.assert_array_equal(pack_values(rows, E3M2, transpose).data, pack_values(copied, E3M2).data)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_instruction_sets_and_threads_do_not_matter(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes and statistics, bit for bit."""
    values = random_values(500, 1100, "float32")
    values[77, 5] = np.nan
    made = []
    for isa in available_isas():
        monkeypatch.setenv("MXSPEC_ISA", isa)
        made += [[pack_values(values, name, threads=threads) for name in WEIGHT_FORMATS]]
    monkeypatch.setenv("MXSPEC_ISA", "scalar")
    reference = [pack_values(values, name, threads=1) for name in WEIGHT_FORMATS]
    for every_format in made:
        for one, wanted in zip(every_format, reference, strict=True):
            np.testing.assert_array_equal(one.data, wanted.data)
            assert one.statistics == wanted.statistics


@pytest.mark.parametrize("weight_format", WEIGHT_FORMATS)
def test_unpack_values_gives_the_values_of_the_bytes(weight_format: str) -> None:
    values = random_values(19, 65, "float32")
    packed = pack_values(values, weight_format)
    again = unpack_values(packed.data, weight_format, 19, 65)
    error = np.sqrt(((again - values.astype(np.float64)) ** 2).sum() / (values.astype(np.float64) ** 2).sum())
    assert packed.relative_error == pytest.approx(error, rel=1e-6)
    assert 0 < error < LARGEST_ERRORS[weight_format]


def test_an_all_zero_matrix_has_no_error() -> None:
    assert pack_values(np.zeros((3, 3), np.float32), E3M2).relative_error == 0.0


def zeros(*shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    return np.zeros(shape, dtype)


def octets(*shape: int) -> NDArray[np.uint8]:
    return np.zeros(shape, np.uint8)


def misaligned() -> NDArray[np.float32]:
    return octets(4 * 32 * 4 + 1)[1:].view(np.float32).reshape(4, 32)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: pack_values([[1.0]], E3M2), TypeError, "values: got list, expected a numpy array"),
        (lambda: pack_values(zeros(2, 32, dtype=np.float64), E3M2), TypeError, "values: got float64, expected float32"),
        (lambda: pack_values(zeros(2, 32, dtype=">f4"), E3M2), TypeError, "values: got >f4, expected float32"),
        (lambda: pack_values(zeros(2, 32, dtype=np.uint16), E3M2), TypeError, "uint16 with dtype='bfloat16'"),
        (lambda: pack_values(zeros(2, 32), E3M2, dtype="bfloat16"), TypeError, "got float32 for dtype='bfloat16'"),
        (lambda: pack_values(zeros(2, 32), E3M2, dtype="float8"), ValueError, r"dtype: got 'float8', .*did you mean"),
        (lambda: pack_values(zeros(2, 32), "e4m3"), ValueError, "format: got 'e4m3', expected one of fp16_tiles, mx"),
        (lambda: pack_values(zeros(32), E3M2), ValueError, r"values: got shape \[32\], expected a matrix"),
        (lambda: pack_values(zeros(32, 4).T, E3M2), ValueError, "expected contiguous rows in rising order"),
        (lambda: pack_values(zeros(2, 64)[:, ::2], E3M2), ValueError, "expected contiguous rows in rising order"),
        (lambda: pack_values(zeros(2, 64)[::-1], E3M2), ValueError, "expected contiguous rows in rising order"),
        (lambda: pack_values(misaligned(), E3M2), ValueError, "values: the array is not aligned"),
        (lambda: pack_values(zeros(20, 32), E3M2, rows=(8, 16)), ValueError, r"rows: got \(8, 16\) of 20, expected m"),
        (lambda: pack_values(zeros(40, 32), E3M2, rows=(0, 20)), ValueError, r"rows: got \(0, 20\) of 40"),
        (lambda: pack_values(zeros(40, 32), E3M2, rows=(32, 48)), ValueError, r"rows: got \(32, 48\) of 40"),
        (lambda: pack_values(zeros(40, 32), E3M2, rows=(16, 16)), ValueError, r"rows: got \(16, 16\) of 40"),
        (lambda: pack_values(zeros(4, 32), FP16_TILES, out=octets(1, 400)), ValueError, r"out: .*\[1, 1024\]"),
        (
            lambda: pack_values(zeros(4, 32), FP16_TILES, out=zeros(1, 1024)),
            TypeError,
            "out: got float32, expected an ",
        ),
        (lambda: pack_values(zeros(4, 32), FP16_TILES, threads=-1), ValueError, "threads: got -1"),
        (lambda: pack(octets(1, 1) + np.uint8(64), octets(1, 1)), ValueError, "code is above the largest"),
        (lambda: pack(octets(2, 33), octets(2, 1)), ValueError, "scales: got shape"),
        (lambda: unpack(octets(1, 400), 17, 32), ValueError, r"packed: .*expected \[2, 400\]"),
        (lambda: unpack_fp16(octets(1, 1024), 16, 0), ValueError, "n and k: got 16 and 0"),
        (lambda: unpack_values(octets(1, 400), "mxfp4", 16, 32), ValueError, "format: got 'mxfp4'"),
    ],
)
def test_bad_arguments_are_named(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


def test_a_read_only_output_is_refused() -> None:
    out = np.zeros((1, 400), np.uint8)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out: the array is read-only"):
        pack_values(np.ones((1, 1), np.float32), E3M2, out=out)
