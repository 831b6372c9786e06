"""RotaryEmbedding through ONNX Runtime: bit for bit transformers' formula in float32, whatever the company."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from tests.runtime.ops.one_node import ERRORS, FLOAT, open_node

Floats = NDArray[np.float32]


def rotary_session(cos_type: int = FLOAT, **attributes: int) -> ort.InferenceSession:
    return open_node("RotaryEmbedding", ("x", "cos", "sin"), ("output",), {"cos": cos_type}, **attributes)


def operands(batch: int, seq: int, heads: int, head_size: int, rotary: int) -> dict[str, Floats]:
    random = np.random.default_rng(1)
    x = random.standard_normal((batch, seq, heads, head_size), np.float32)
    cos, sin = random.standard_normal((2, batch, seq, rotary // 2), np.float32)
    return {"x": x, "cos": cos, "sin": sin}


def expected(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """out = x * cos + rotate_half(x) * sin on the first entries of each head, both halves by one; the rest as it is."""
    rotary, cos, sin = 2 * cos.shape[-1], np.tile(cos, 2), np.tile(sin, 2)
    turning, rest = x[..., :rotary], x[..., rotary:]
    low, high = turning[..., : rotary // 2], turning[..., rotary // 2 :]
    turned = turning * cos[:, :, None] + np.concatenate([-high, low], axis=-1) * sin[:, :, None]
    return np.concatenate([turned, rest], axis=-1)


@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 4, 64, 64),
        (2, 3, 3, 80, 32),
        (1, 5, 1, 20, 18),
        (2, 2, 2, 8, 0),
        (0, 3, 2, 8, 8),
        (1, 0, 2, 8, 8),
        (2, 300, 7, 64, 64),  # enough to be divided over threads
    ],
)
def test_equals_the_formula(sizes: tuple[int, int, int, int, int]) -> None:
    feeds = operands(*sizes)
    output = rotary_session().run(None, feeds)[0]
    np.testing.assert_array_equal(output, expected(**feeds), strict=True)


def test_pairs_turn_entries_side_by_side() -> None:
    feeds = operands(2, 3, 3, 20, 18)
    output = rotary_session(pairs=1).run(None, feeds)[0]
    order = [*range(0, 18, 2), *range(1, 18, 2)]  # the first of each pair, then the second: then they are halves
    apart = feeds | {"x": feeds["x"][..., [*order, 18, 19]]}
    np.testing.assert_array_equal(output[..., [*order, 18, 19]], expected(**apart), strict=True)


def test_wrong_attribute() -> None:
    with pytest.raises(ERRORS.RuntimeException, match="attribute pairs: got 2, expected"):
        rotary_session(pairs=2)


def test_row_does_not_depend_on_the_rest_of_the_batch() -> None:
    feeds = operands(2, 300, 7, 64, 48)
    session = rotary_session()
    together = session.run(None, feeds)[0]
    for b, i in [(0, 0), (0, 41), (1, 0), (1, 299)]:
        alone = session.run(None, {name: array[b : b + 1, i : i + 1].copy() for name, array in feeds.items()})[0]
        assert alone.tobytes() == together[b, i].tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": (2, 3, 8)}, r"x: got shape \[2, 3, 8\], expected \[batch, seq, heads, head_size\]"),
        ({"cos": (2, 3)}, r"cos: got shape \[2, 3\], expected \[batch, seq, rotary / 2\]"),
        ({"cos": (1, 3, 4)}, r"cos: got shape \[1, 3, 4\], .* for x \[2, 3, 2, 8\]"),
        ({"sin": (2, 4, 4)}, r"sin: got shape \[2, 4, 4\]"),
        ({"cos": (2, 3, 5), "sin": (2, 3, 5)}, "at most head_size"),
        ({"sin": (2, 3, 3)}, r"cos \[2, 3, 4\] and sin \[2, 3, 3\] differ"),
    ],
)
def test_wrong_shapes(change: dict[str, tuple[int, ...]], message: str) -> None:
    feeds = operands(2, 3, 2, 8, 8) | {name: np.zeros(shape, np.float32) for name, shape in change.items()}
    with pytest.raises(ERRORS.InvalidArgument, match=message):
        rotary_session().run(None, feeds)


def test_wrong_type() -> None:
    with pytest.raises(ERRORS.InvalidGraph, match="double"):
        rotary_session(TensorProto.DOUBLE)
