"""Attention through ONNX Runtime: right against float64, the same bits in any company, in place when bound so.

Run as a program, this file stores the results of one fixed set of calls, for comparison between processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from mxspec.runtime import ops

Floats = NDArray[np.float32]
Array = NDArray[Any]
FLOAT, HALF, INT32 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32
INPUTS = ("query", "key", "value", "past_key", "past_value", "past_lengths", "new_lengths", "alibi_slopes")
OUTPUTS = ("output", "present_key", "present_value")
CACHE_TYPES = pytest.mark.parametrize("cache_type", ["float16", "float32"])
VARIANTS = {
    "plain": {},
    "softcap": {"softcap": 3.0},
    "window": {"window": 37},
    "alibi": {"alibi": True},
    "all": {"softcap": 5.0, "window": 140, "alibi": True},
}
EVERY_VARIANT = pytest.mark.parametrize("variant", VARIANTS)


def attention_model(types: dict[str, int] | None = None, alibi: bool = False, **attributes: float | int | str) -> bytes:
    """A graph of one Attention whose operands are all inputs, of any shape."""
    element_types = dict.fromkeys(INPUTS, FLOAT) | {"past_lengths": INT32, "new_lengths": INT32} | (types or {})
    names = INPUTS if alibi else INPUTS[:-1]
    inputs = [helper.make_tensor_value_info(name, element_types[name], None) for name in names]
    outputs = [
        helper.make_tensor_value_info(name, element_types[source], None)
        for name, source in zip(OUTPUTS, ("query", "past_key", "past_value"), strict=True)
    ]
    node = helper.make_node("Attention", names, OUTPUTS, domain="mxspec", **attributes)
    graph = helper.make_graph([node], "attention", inputs, outputs)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mxspec", 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model.SerializeToString()


def open_session(model: bytes) -> ort.InferenceSession:
    """A session on a graph with our operators."""
    options = ort.SessionOptions()
    options.log_severity_level = 4  # errors reach us as exceptions, not as lines on standard error
    options.register_custom_ops_library(str(ops.library_path()))
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def session_for(cache_type: str, alibi: bool = False, **attributes: float | int) -> ort.InferenceSession:
    cache = HALF if cache_type == "float16" else FLOAT
    return open_session(attention_model({"past_key": cache, "past_value": cache}, alibi, **{"scale": 0.3} | attributes))


@dataclass(frozen=True, slots=True)
class Call:
    """The operands of one call; the cache is NaN behind the past."""

    query: Floats
    key: Floats
    value: Floats
    past_key: Array
    past_value: Array
    past_lengths: NDArray[np.int32]
    new_lengths: NDArray[np.int32]

    def feeds(self, alibi: bool = False) -> dict[str, Array]:
        feeds = {name: getattr(self, name) for name in INPUTS[:-1]}
        return feeds | ({"alibi_slopes": slopes_of(self.query.shape[2])} if alibi else {})

    def rows(self, batch: int, first: int, last: int, past_key: Array, past_value: Array) -> Call:
        """New rows of one sequence alone, on the cache that the rows before them left behind."""
        take = (slice(batch, batch + 1), slice(first, last))
        past, new = np.array([self.past_lengths[batch] + first]), np.array([last - first])
        query, key, value = (np.ascontiguousarray(array[take]) for array in (self.query, self.key, self.value))
        return Call(query, key, value, past_key, past_value, past.astype(np.int32), new.astype(np.int32))


def random_call(
    past: list[int],
    new: list[int],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 16,
    capacity: int = 300,
    cache_type: str = "float16",
    seed: int = 0,
) -> Call:
    random = np.random.default_rng(seed)
    batch, seq = len(past), max(new)
    query = random.standard_normal((batch, seq, heads, head_size), np.float32) * 2
    key, value = random.standard_normal((2, batch, seq, kv_heads, head_size), np.float32) * 2
    caches = random.standard_normal((2, batch, kv_heads, capacity, head_size), np.float32).astype(cache_type)
    for b, length in enumerate(past):
        caches[:, b, :, length:] = np.nan
    lengths = np.array(past, np.int32), np.array(new, np.int32)
    return Call(query, key, value, caches[0], caches[1], *lengths)


def slopes_of(heads: int) -> Floats:
    return (2.0 ** -np.arange(1, heads + 1)).astype(np.float32)


def expected(
    call: Call, *, softcap: float = 0.0, window: int = 0, alibi: bool = False
) -> tuple[Array, dict[str, Array]]:
    """Outputs in float64, and the caches with the new entries, from the definition."""
    batch, _, heads, _ = call.query.shape
    group = heads // call.past_key.shape[1]
    caches = {"present_key": call.past_key.copy(), "present_value": call.past_value.copy()}
    output = np.zeros(call.query.shape)
    for b in range(batch):
        past, new = int(call.past_lengths[b]), int(call.new_lengths[b])
        for name, fresh in (("present_key", call.key), ("present_value", call.value)):
            caches[name][b, :, past : past + new] = fresh[b, :new].transpose(1, 0, 2)
        for i, head in np.ndindex(new, heads):
            position = past + i
            seen = slice(max(0, position - window + 1) if window else 0, position + 1)
            keys, values = (cache[b, head // group, seen].astype(np.float64) for cache in caches.values())
            scores = keys @ call.query[b, i, head].astype(np.float64) * float(np.float32(0.3))
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            if alibi:
                scores = scores + slopes_of(heads)[head] * (np.arange(seen.start, seen.stop) - position)
            weights = np.exp(scores - scores.max())
            output[b, i, head] = weights @ values / weights.sum()
    return output, caches


def assert_right(session: ort.InferenceSession, call: Call, **options: Any) -> None:
    alibi = bool(options.get("alibi"))
    output, present_key, present_value = session.run(None, call.feeds(alibi))
    exact, caches = expected(call, **options)
    np.testing.assert_allclose(output, exact, rtol=0, atol=3e-5)
    np.testing.assert_array_equal(present_key, caches["present_key"])  # NaN equals NaN here
    np.testing.assert_array_equal(present_value, caches["present_value"])
    for b, new in enumerate(call.new_lengths):
        assert not output[b, new:].any()


@CACHE_TYPES
@EVERY_VARIANT
@pytest.mark.parametrize(
    ("past", "new", "sizes"),
    [
        pytest.param([0], [200], {"heads": 4, "kv_heads": 2}, id="prompt"),
        pytest.param([290], [1], {"heads": 8, "kv_heads": 1, "head_size": 64}, id="step"),
        pytest.param([250, 0, 127, 30], [6, 3, 0, 1], {"heads": 6, "kv_heads": 3, "head_size": 20}, id="ragged"),
        pytest.param([120, 294], [9, 6], {"heads": 3, "kv_heads": 3, "head_size": 4}, id="ungrouped"),
        pytest.param([0, 0], [0, 0], {}, id="nothing-new"),
    ],
)
def test_equals_float64(cache_type: str, variant: str, past: list[int], new: list[int], sizes: dict[str, int]) -> None:
    if max(new) == 0:  # padding only
        call = random_call(past, [2, 2], cache_type=cache_type, **sizes)
        call = replace(call, new_lengths=np.zeros(2, np.int32))
    else:
        call = random_call(past, new, cache_type=cache_type, **sizes)
    options: dict[str, Any] = VARIANTS[variant]
    assert_right(session_for(cache_type, **options), call, **options)


@pytest.mark.parametrize("shape", [(0, 3, 4, 8), (2, 0, 4, 8)], ids=["no-batch", "no-rows"])
def test_empty_calls(shape: tuple[int, int, int, int]) -> None:
    batch, seq, _, head_size = shape
    fresh, cache = np.zeros((batch, seq, 2, head_size), np.float32), np.ones((batch, 2, 5, head_size), np.float16)
    lengths = np.zeros(batch, np.int32)
    call = Call(np.zeros(shape, np.float32), fresh, fresh, cache, cache, lengths, lengths)
    output, present_key, _ = session_for("float16").run(None, call.feeds())
    assert output.shape == shape
    np.testing.assert_array_equal(present_key, cache)


def test_no_capacity() -> None:
    call = random_call([0], [1], capacity=0)
    call = replace(call, new_lengths=np.zeros(1, np.int32))
    assert not session_for("float16").run(None, call.feeds())[0].any()


@CACHE_TYPES
@EVERY_VARIANT
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_row_does_not_depend_on_company(cache_type: str, variant: str, threads: int) -> None:
    """Rows of a ragged call, of chunks of 7 and of single steps are equal, and so are the caches."""
    options: dict[str, Any] = VARIANTS[variant]
    alibi = bool(options.get("alibi"))
    call = random_call([250, 0, 125], [17, 30, 1], heads=6, kv_heads=2, head_size=72, cache_type=cache_type)
    session = session_for(cache_type, **options)
    with_threads(threads)
    try:
        together, present_key, present_value = session.run(None, call.feeds(alibi))
    finally:
        with_threads(1)
    for b, chunk in np.ndindex(3, 2):
        key, value = call.past_key[b : b + 1], call.past_value[b : b + 1]
        new = int(call.new_lengths[b])
        for first in range(0, new, (1, 7)[chunk]):
            last = min(first + (1, 7)[chunk], new)
            output, key, value = session.run(None, call.rows(b, first, last, key, value).feeds(alibi))
            assert output[0].tobytes() == together[b, first:last].tobytes(), (b, first, last)
        assert key[0].tobytes() == present_key[b].tobytes()
        assert value[0].tobytes() == present_value[b].tobytes()


def with_threads(count: int) -> None:
    ops.set_threads(count)
    assert ops.threads() == count


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = ops.threads()
    yield
    ops.set_threads(before)


@CACHE_TYPES
def test_stale_entries_do_not_leak(cache_type: str) -> None:
    """What lies behind the past, or before the window, may be anything."""
    call = random_call([140, 3], [4, 4], cache_type=cache_type)
    for options in ({}, {"window": 9}):
        session = session_for(cache_type, **options)
        clean = session.run(None, call.feeds())[0]
        assert np.isfinite(clean).all()
        for poison in (np.inf, -np.inf, 65504, 0):
            key, value = call.past_key.copy(), call.past_value.copy()
            for cache in (key, value):
                cache[0, :, 140:], cache[1, :, 3:] = poison, poison
                if options:
                    cache[0, :, :132] = np.nan  # the row at 140 sees 132 and later
            poisoned = session.run(None, replace(call, past_key=key, past_value=value).feeds())[0]
            assert poisoned.tobytes() == clean.tobytes(), (options, poison)


@CACHE_TYPES
def test_nan_that_is_seen_is_kept_to_its_rows(cache_type: str) -> None:
    """A NaN in the cache reaches the rows whose window holds it and no other."""
    call = random_call([140], [6], heads=2, kv_heads=1, cache_type=cache_type)
    session = session_for(cache_type, window=9)
    clean = session.run(None, call.feeds())[0]
    call.past_value[0, 0, 134, 5] = np.nan  # seen from 134 to 142
    output = session.run(None, call.feeds())[0]
    assert np.isnan(output[0, :3, :, 5]).all()
    output[0, :3, :, 5] = clean[0, :3, :, 5]
    assert output.tobytes() == clean.tobytes()


@CACHE_TYPES
def test_bound_cache_is_written_in_place(cache_type: str) -> None:
    """Bound to one buffer, past and present are the same memory, and outputs are those of the unbound call."""
    call = random_call([20, 5], [2, 1], cache_type=cache_type)
    session = session_for(cache_type)
    unbound = session.run(None, call.feeds())
    # An OrtValue made of an array is that array's memory.
    values = {name: ort.OrtValue.ortvalue_from_numpy(array.copy()) for name, array in call.feeds().items()}
    output = ort.OrtValue.ortvalue_from_numpy(np.full_like(call.query, 7))
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("output", output)
    binding.bind_ortvalue_output("present_key", values["past_key"])
    binding.bind_ortvalue_output("present_value", values["past_value"])
    session.run_with_iobinding(binding)
    assert output.numpy().tobytes() == unbound[0].tobytes()
    assert values["past_key"].numpy().tobytes() == unbound[1].tobytes()
    assert values["past_value"].numpy().tobytes() == unbound[2].tobytes()
    assert unbound[1].tobytes() != call.past_key.tobytes()  # the call wrote something, and not into its input


def test_rollback_is_a_smaller_length() -> None:
    """After rejected tokens, a call with a smaller past gives what it gives on a cache that never held them."""
    session = session_for("float16")
    call = random_call([100], [5], capacity=110)
    drafted = session.run(None, call.feeds())
    later = random_call([102], [2], capacity=110, seed=1)
    clean = session.run(None, call.rows(0, 0, 2, call.past_key, call.past_value).feeds())
    results = [
        session.run(None, replace(later, past_key=cache[1], past_value=cache[2]).feeds())[0]
        for cache in (drafted, clean)
    ]
    assert results[0].tobytes() == results[1].tobytes()


def fixed_calls() -> Iterator[tuple[str, Array]]:
    """Outputs and caches over variants, cache types, head sizes and spans."""
    sizes = [(4, 2, 16), (6, 1, 20), (7, 7, 72), (9, 1, 64)]
    for (variant, options), (heads, kv_heads, head_size) in [(v, s) for v in VARIANTS.items() for s in sizes]:
        for cache_type in ("float16", "float32"):
            call = random_call(
                [280, 0, 120], [9, 40, 1], heads=heads, kv_heads=kv_heads, head_size=head_size, cache_type=cache_type
            )
            results = session_for(cache_type, **options).run(None, call.feeds(bool(options.get("alibi"))))
            for name, array in zip(OUTPUTS, results, strict=True):
                yield f"{variant}-{cache_type}-{heads}-{head_size}-{name}", array


@pytest.fixture(scope="module")
def outputs() -> dict[str, Array]:
    """What the instruction set chosen by itself gives."""
    return dict(fixed_calls())


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "avx512vnni", "neon"])
def test_same_bits_on_every_isa(isa: str, tmp_path: Path, outputs: dict[str, Array]) -> None:
    command = [sys.executable, __file__, str(tmp_path / "outputs.npz")]
    result = subprocess.run(command, env=os.environ | {"MXSPEC_ISA": isa}, capture_output=True, text=True)
    if "does not have" in result.stderr:
        pytest.skip(f"this machine does not have {isa}")
    assert result.returncode == 0, result.stderr
    with np.load(tmp_path / "outputs.npz") as stored:
        assert set(stored) == set(outputs)
        for name, array in outputs.items():
            assert stored[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "attribute scale: missing, or not a float"),
        ({"scale": 1}, "attribute scale: missing, or not a float"),
        ({"scale": float("nan")}, "attribute scale: got nan"),
        ({"scale": 1.0, "softcap": -1.0}, "attribute softcap: got -1"),
        ({"scale": 1.0, "softcap": "none"}, "attribute softcap: missing, or not a float"),
        ({"scale": 1.0, "window": -4}, "attribute window: got -4"),
        ({"scale": 1.0, "window": 4.0}, "attribute window: missing, or not an integer"),
    ],
)
def test_wrong_attributes(attributes: dict[str, float | int | str], message: str) -> None:
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.RuntimeException, match=message):
        open_session(attention_model(**attributes))


def zeros(*shape: int, dtype: str = "float32") -> Array:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": zeros(2, 3, 32)}, r"query: got shape \[2, 3, 32\], expected \[batch, seq, heads, head_size\]"),
        ({"query": zeros(2, 3, 4, 6)}, "query: got head_size 6, expected a multiple of 4"),
        ({"query": zeros(2, 3, 4, 0)}, "query: got head_size 0, expected a multiple of 4"),
        ({"query": zeros(2, 3, 3, 8)}, "query: got 3 heads, expected a multiple of the 2 key-value heads"),
        ({"query": zeros(2, 3, 0, 8)}, "query: got 0 heads"),
        ({"query": zeros(1, 3, 4, 8)}, r"past_key: got shape \[2, 2, 10, 8\], expected .* = \[1, 2, 10, 8\]"),
        ({"query": zeros(2, 3, 4, 12)}, r"past_key: got shape \[2, 2, 10, 8\], expected .* = \[2, 2, 10, 12\]"),
        ({"past_key": zeros(2, 2, 80)}, r"past_key: got shape \[2, 2, 80\]"),
        ({"past_key": zeros(2, 0, 10, 8)}, "expected a multiple of the 0 key-value heads"),
        ({"past_value": zeros(2, 2, 9, 8)}, r"past_value: got shape \[2, 2, 9, 8\], expected the shape of past_key"),
        ({"key": zeros(2, 2, 2, 8)}, r"key: got shape \[2, 2, 2, 8\], expected .* = \[2, 3, 2, 8\]"),
        ({"value": zeros(2, 3, 4, 8)}, r"value: got shape \[2, 3, 4, 8\], expected .* = \[2, 3, 2, 8\]"),
        ({"past_lengths": zeros(3, dtype="int32")}, r"past_lengths: got shape \[3\], expected \[batch\] = \[2\]"),
        ({"new_lengths": zeros(2, 1, dtype="int32")}, r"new_lengths: got shape \[2, 1\]"),
        ({"past_lengths": np.array([1, -1], np.int32)}, r"past_lengths\[1\]: got -1, expected 0 or more"),
        ({"new_lengths": np.array([-2, 1], np.int32)}, r"new_lengths\[0\]: got -2, expected 0 to seq = 3"),
        ({"new_lengths": np.array([1, 4], np.int32)}, r"new_lengths\[1\]: got 4, expected 0 to seq = 3"),
        ({"past_lengths": np.array([7, 8], np.int32)}, r"past_lengths\[1\]: got 8 and 3 new, .* capacity 10 together"),
        ({"past_lengths": np.array([2**31 - 1, 0], np.int32)}, r"past_lengths\[0\]: got 2147483647 and 3 new"),
        ({"past_lengths": np.array([-(2**31), 0], np.int32)}, r"past_lengths\[0\]: got -2147483648"),
        ({"alibi_slopes": zeros(2)}, r"alibi_slopes: got shape \[2\], expected \[heads\] = \[4\]"),
    ],
)
def test_wrong_shapes_and_lengths(change: dict[str, Array], message: str) -> None:
    call = random_call([0, 0], [3, 3], head_size=8, capacity=10, cache_type="float32")
    alibi = "alibi_slopes" in change
    session = session_for("float32", alibi)
    session.run(None, call.feeds(alibi))
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match=message):
        session.run(None, call.feeds(alibi) | change)


@pytest.mark.parametrize(
    "types",
    [
        {"query": TensorProto.DOUBLE},
        {"key": HALF},
        {"past_key": TensorProto.BFLOAT16, "past_value": TensorProto.BFLOAT16},
        {"past_key": HALF, "past_value": FLOAT},
        {"past_lengths": TensorProto.INT64},
    ],
    ids=lambda types: "-".join(types),
)
def test_wrong_types(types: dict[str, int]) -> None:
    errors = ort.capi.onnxruntime_pybind11_state
    with pytest.raises((errors.InvalidGraph, errors.NotImplemented, errors.Fail, errors.InvalidArgument)):
        open_session(attention_model(types, scale=1.0))


if __name__ == "__main__":
    np.savez(Path(sys.argv[1]), **dict(fixed_calls()))
