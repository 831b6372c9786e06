"""Caches in MXINT8: they hold what the codec makes of keys and values, and attention over them is that over these."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto
from scipy.linalg import hadamard

from mxspec.formats import tiles
from mxspec.formats.caches import entry_size
from tests.runtime.ops.test_attention_op import (
    CACHES,
    VARIANTS,
    Call,
    attention_session,
    expected,
    random_call,
    run,
)

Floats = NDArray[np.float32]
SIZES = [(4, 2, 32), (8, 1, 64), (3, 3, 96)]
EVERY_SIZE = pytest.mark.parametrize(("heads", "kv_heads", "head_size"), SIZES, ids=str)


def transformed(entries: Floats) -> Floats:
    """Each block of 32 times the orthogonal Hadamard matrix, its own inverse."""
    blocks = entries.reshape(*entries.shape[:-1], -1, 32).astype(np.float64)
    return (blocks @ hadamard(32) / 32**0.5).reshape(entries.shape).astype(np.float32)


def stored(entries: Floats) -> NDArray[np.uint8]:
    """Entries as the codec rounds them, elements and scales: uint8[..., 33 / 32 of the size]."""
    codes, scales = tiles.quantize(entries.reshape(-1, entries.shape[-1]), "int8")
    size = entry_size("mxint8", entries.shape[-1])
    return np.concatenate([codes, scales], axis=1).reshape(*entries.shape[:-1], size)


def values_of(cache: NDArray[np.uint8]) -> Floats:
    size = cache.shape[-1] // 33 * 32
    entries = np.ascontiguousarray(cache.reshape(-1, cache.shape[-1]))
    values = tiles.dequantize(entries[:, :size].copy(), entries[:, size:].copy(), "int8")
    return values.reshape(*cache.shape[:-1], size)


def in_mxint8(call: Call) -> Call:
    """The call over caches of MXINT8, a key times the square root of 32 that its transform leaves out."""
    keys = transformed(call.past_key.astype(np.float32)) * np.float32(32**0.5)
    return replace(call, past_key=stored(keys), past_value=stored(call.past_value.astype(np.float32)))


def session(**options: Any) -> ort.InferenceSession:
    return attention_session(dict.fromkeys(CACHES, TensorProto.UINT8), **{"scale": 0.3} | options)


def as_read(keys: NDArray[np.uint8]) -> Floats:
    """What cached keys stand for."""
    return transformed(values_of(keys)) / np.float32(32**0.5)


@EVERY_SIZE
@pytest.mark.parametrize("variant", VARIANTS)
def test_attention_is_that_over_what_the_caches_hold(variant: str, heads: int, kv_heads: int, head_size: int) -> None:
    options = VARIANTS[variant]
    plain = random_call([150, 0, 17], [3, 20, 1], heads=heads, kv_heads=kv_heads, head_size=head_size)
    call = in_mxint8(plain)
    output, keys, values = run(session(**options), call.feeds(**options))
    # The oracle attends to what is in the caches by now, its new entries included.
    after = replace(plain, past_key=as_read(keys), past_value=values_of(values))
    rows = np.concatenate([np.arange(past, past + new) for past, new in zip([150, 0, 17], [3, 20, 1], strict=True)])
    slots = np.repeat(plain.slots, plain.new_lengths)
    fresh = {"key": after.past_key[slots, :, rows][None], "value": after.past_value[slots, :, rows][None]}
    exact, _ = expected(replace(after, **fresh), **options)
    np.testing.assert_allclose(output, exact, rtol=0, atol=2e-3)
    # And these are those of the codec.
    new_keys, new_values = keys[slots, :, rows], values[slots, :, rows]
    np.testing.assert_array_equal(new_values, stored(plain.value[0]))
    exactly = transformed(plain.key[0]) * np.float32(32**0.5)
    np.testing.assert_allclose(values_of(new_keys), values_of(stored(exactly)), rtol=0, atol=0.3)  # a step of it
    untouched = np.ones(keys.shape[:3], bool)
    untouched[slots, :, rows] = False
    assert np.array_equal(keys[untouched], call.past_key[untouched])
    assert np.array_equal(values[untouched], call.past_value[untouched])


def test_a_value_that_is_no_number_is_seen() -> None:
    call = in_mxint8(random_call([40], [1], heads=2, kv_heads=1, head_size=32))
    clean, *_ = run(session(), call.feeds())
    assert np.isfinite(clean).all()
    for name in ("key", "value", "query"):
        spoilt = getattr(call, name).copy()
        spoilt[0, 0, 0, 3] = np.nan
        output, *_ = run(session(), replace(call, **{name: spoilt}).feeds())
        assert np.isnan(output).any(), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"past_key": (2, 1, 9, 32)}, r"past_key: got 32 bytes an entry, expected a multiple of 33 for MXINT8"),
        ({"past_key": (2, 1, 9, 66)}, r"past_key: got shape \[2, 1, 9, 66\], .* = \[2, 1, 9, 33\]"),
        ({"past_value": (2, 1, 8, 33)}, r"past_value: got shape \[2, 1, 8, 33\]"),
    ],
)
def test_caches_of_other_shapes_are_refused(changes: dict[str, tuple[int, ...]], message: str) -> None:
    call = in_mxint8(random_call([4], [1], heads=2, kv_heads=1, head_size=32, capacity=9))
    wrong = {name: np.zeros(shape, np.uint8) for name, shape in changes.items()}
    with pytest.raises(Exception, match=message):
        run(session(), replace(call, **wrong).feeds())
