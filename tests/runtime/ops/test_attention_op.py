"""Attention through ONNX Runtime: right against float64, the same bits in every batch, in place or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from mxspec.runtime import ops
from tests.runtime.ops.one_node import ERRORS, WRONG_TYPE, open_node, run_in_place

Floats = NDArray[np.float32]
Array = NDArray[Any]
FLOAT, HALF, INT32 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32
CACHES = ("past_key", "past_value")
LENGTHS = ("slots", "past_lengths", "new_lengths")
INPUTS = ("query", "key", "value", *CACHES, *LENGTHS)
OPTIONAL = {"alibi": "alibi_slopes", "sinks": "sinks", "distances": "distance_bias"}
OUTPUTS = ("output", "present_key", "present_value")
CACHE_TYPES = pytest.mark.parametrize("cache_type", ["float16", "float32"])
VARIANTS = {
    "plain": {},
    "softcap": {"softcap": 3.0},
    "window": {"window": 37},
    "alibi": {"alibi": True},
    "sinks": {"sinks": True},
    "distances": {"distances": 40, "first_distance": -39},
    "distances that end before the row": {"distances": 100, "first_distance": -150},
    "all": {"softcap": 5.0, "window": 140, "alibi": True, "sinks": True, "distances": 9, "first_distance": -4},
}
EVERY_VARIANT = pytest.mark.parametrize("variant", VARIANTS)


def attention_session(types: dict[str, int] | None = None, **options: float | int | str) -> ort.InferenceSession:
    """A session on a graph of one Attention."""
    attributes = {name: value for name, value in options.items() if name not in OPTIONAL}
    names = [*INPUTS, *(name if options.get(option) else "" for option, name in OPTIONAL.items())]
    known = dict.fromkeys(LENGTHS, INT32) | (types or {})
    sources = zip(OUTPUTS, ("query", *CACHES), strict=True)
    known |= {name: known[source] for name, source in sources if source in known}
    return open_node("Attention", names, OUTPUTS, known, **attributes)


def session_for(cache_type: str, **options: float | int) -> ort.InferenceSession:
    cache = HALF if cache_type == "float16" else FLOAT
    return attention_session(dict.fromkeys(CACHES, cache), **{"scale": 0.3} | options)


def run(session: ort.InferenceSession, feeds: dict[str, Array]) -> list[Array]:
    """Output and caches of a call whose presents are bound to copies of its pasts."""
    found = run_in_place(session, feeds)
    return [found[name] for name in ("output", *CACHES)]


@dataclass(frozen=True, slots=True)
class Call:
    """The operands of one call; the cache is NaN where no past is."""

    query: Floats
    key: Floats
    value: Floats
    past_key: Array
    past_value: Array
    slots: NDArray[np.int32]
    past_lengths: NDArray[np.int32]
    new_lengths: NDArray[np.int32]

    def feeds(self, alibi: bool = False, sinks: bool = False, distances: int = 0, **_: Any) -> dict[str, Array]:
        """The inputs of a session with these options, and whatever others."""
        feeds: dict[str, Array] = {name: getattr(self, name) for name in INPUTS}
        heads = self.query.shape[2]
        slopes = {"alibi_slopes": slopes_of(heads)} if alibi else {}
        biases = {"distance_bias": biases_of(heads, distances)} if distances else {}
        return feeds | slopes | ({"sinks": sinks_of(heads)} if sinks else {}) | biases

    def tokens_of(self, sequence: int) -> slice:
        """Where the sequence's tokens stand in the call."""
        end = int(self.new_lengths[: sequence + 1].sum())
        return slice(end - int(self.new_lengths[sequence]), end)

    def rows(self, sequence: int, first: int, last: int, past_key: Array, past_value: Array) -> Call:
        """New tokens of one sequence alone, on a cache of one slot that holds those before them."""
        begin = self.tokens_of(sequence).start
        fresh = (array[:, begin + first : begin + last] for array in (self.query, self.key, self.value))
        lengths = np.array([[0], [self.past_lengths[sequence] + first], [last - first]], np.int32)
        return Call(*fresh, past_key, past_value, *lengths)


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
    tokens, slots = sum(new), len(past) + 1  # one slot is nobody's
    query = random.standard_normal((1, tokens, heads, head_size), np.float32) * 2
    key, value = random.standard_normal((2, 1, tokens, kv_heads, head_size), np.float32) * 2
    caches = np.full((2, slots, kv_heads, capacity, head_size), np.nan, cache_type)
    taken = random.permutation(slots)[: len(past)]
    for slot, length in zip(taken, past, strict=True):
        caches[:, slot, :, :length] = random.standard_normal((2, kv_heads, length, head_size), np.float32)
    lengths = (np.array(values, np.int32) for values in (taken, past, new))
    return Call(query, key, value, caches[0], caches[1], *lengths)


def slopes_of(heads: int) -> Floats:
    return (2.0 ** -np.arange(1, heads + 1)).astype(np.float32)


def sinks_of(heads: int) -> Floats:
    return np.linspace(-2, 12, heads, dtype=np.float32)


def biases_of(heads: int, distances: int) -> Floats:
    return np.random.default_rng(distances).normal(0, 3, (heads, distances)).astype(np.float32)


def expected(
    call: Call,
    *,
    softcap: float = 0.0,
    window: int = 0,
    alibi: bool = False,
    sinks: bool = False,
    distances: int = 0,
    first_distance: int = 0,
) -> tuple[Array, dict[str, Array]]:
    """Outputs in float64, and the caches with the new entries, from the definition."""
    heads = call.query.shape[2]
    group = heads // call.past_key.shape[1]
    caches = {"present_key": call.past_key.copy(), "present_value": call.past_value.copy()}
    output = np.zeros(call.query.shape)
    for sequence, slot in enumerate(call.slots):
        past, new = int(call.past_lengths[sequence]), int(call.new_lengths[sequence])
        tokens = call.tokens_of(sequence)
        for name, fresh in (("present_key", call.key), ("present_value", call.value)):
            caches[name][slot, :, past : past + new] = fresh[0, tokens].transpose(1, 0, 2)
        for i, head in np.ndindex(new, heads):
            position = past + i
            seen = slice(max(0, position - window + 1) if window else 0, position + 1)
            keys, values = (cache[slot, head // group, seen].astype(np.float64) for cache in caches.values())
            scores = keys @ call.query[0, tokens.start + i, head].astype(np.float64) * float(np.float32(0.3))
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            if alibi:
                scores = scores + slopes_of(heads)[head] * (np.arange(seen.start, seen.stop) - position)
            if distances:
                distance = np.arange(seen.start, seen.stop) - position
                scores = (
                    scores + biases_of(heads, distances)[head][np.clip(distance - first_distance, 0, distances - 1)]
                )
            sink = sinks_of(heads)[head] if sinks else -np.inf
            largest = max(scores.max(), sink)
            weights = np.exp(scores - largest)
            output[0, tokens.start + i, head] = weights @ values / (weights.sum() + np.exp(sink - largest))
    return output, caches


def assert_right(session: ort.InferenceSession, call: Call, **options: Any) -> None:
    output, present_key, present_value = run(session, call.feeds(**options))
    exact, caches = expected(call, **options)
    np.testing.assert_allclose(output, exact, rtol=0, atol=3e-5)
    np.testing.assert_array_equal(present_key, caches["present_key"])  # NaN equals NaN here
    np.testing.assert_array_equal(present_value, caches["present_value"])


@CACHE_TYPES
@EVERY_VARIANT
@pytest.mark.parametrize(
    ("past", "new", "sizes"),
    [
        pytest.param([0], [200], {"heads": 4, "kv_heads": 2}, id="prompt"),
        pytest.param([290], [1], {"heads": 8, "kv_heads": 1, "head_size": 64}, id="step"),
        pytest.param([250, 0, 127, 30], [6, 3, 5, 1], {"heads": 6, "kv_heads": 3, "head_size": 20}, id="ragged"),
        pytest.param([280, 90, 3, 0, 200, 9, 170, 50], [1] * 8, {"heads": 4, "kv_heads": 1}, id="steps"),
        pytest.param([120, 294], [9, 6], {"heads": 3, "kv_heads": 3, "head_size": 4}, id="ungrouped"),
    ],
)
def test_equals_float64(cache_type: str, variant: str, past: list[int], new: list[int], sizes: dict[str, int]) -> None:
    call = random_call(past, new, cache_type=cache_type, **sizes)
    options: dict[str, Any] = VARIANTS[variant]
    assert_right(session_for(cache_type, **options), call, **options)


@pytest.mark.parametrize("cache", [(2, 2, 5, 8), (0, 2, 5, 8), (2, 2, 0, 8)], ids=["slots", "none", "no-capacity"])
def test_a_call_of_no_sequences(cache: tuple[int, int, int, int]) -> None:
    fresh, past, lengths = np.zeros((1, 0, 2, 8), np.float32), np.ones(cache, np.float16), np.zeros(0, np.int32)
    call = Call(np.zeros((1, 0, 4, 8), np.float32), fresh, fresh, past, past, lengths, lengths, lengths)
    output, present_key, _ = run(session_for("float16"), call.feeds())
    assert output.shape == (1, 0, 4, 8)
    np.testing.assert_array_equal(present_key, past)


@CACHE_TYPES
@EVERY_VARIANT
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_row_does_not_depend_on_the_rest_of_the_batch(cache_type: str, variant: str, threads: int) -> None:
    """Rows of a call of many sequences, of chunks of 7 and of single steps are equal, and so are the caches."""
    options: dict[str, Any] = VARIANTS[variant]
    call = random_call([250, 0, 125], [17, 30, 1], heads=6, kv_heads=2, head_size=72, cache_type=cache_type)
    session = session_for(cache_type, **options)
    together, present_key, present_value = run(session, call.feeds(**options))
    ops.set_threads(1)
    for sequence, chunk in np.ndindex(3, 2):
        slot, tokens = call.slots[sequence], call.tokens_of(sequence)
        key, value = call.past_key[slot : slot + 1], call.past_value[slot : slot + 1]
        new = int(call.new_lengths[sequence])
        for first in range(0, new, (1, 7)[chunk]):
            last = min(first + (1, 7)[chunk], new)
            output, key, value = run(session, call.rows(sequence, first, last, key, value).feeds(**options))
            expected = together[0, tokens][first:last]
            assert output[0].tobytes() == expected.tobytes(), (sequence, first, last)
        assert key[0].tobytes() == present_key[slot].tobytes()
        assert value[0].tobytes() == present_value[slot].tobytes()


@CACHE_TYPES
def test_stale_entries_do_not_leak(cache_type: str) -> None:
    """What lies after the past, before the window or in other slots may be anything."""
    call = random_call([140, 3], [4, 4], cache_type=cache_type)
    for options in ({}, {"window": 9}):
        session = session_for(cache_type, **options)
        clean = run(session, call.feeds())[0]
        assert np.isfinite(clean).all()
        first, second = call.slots
        other = 3 - first - second
        for poison in (np.inf, -np.inf, 65504, 0):
            key, value = call.past_key.copy(), call.past_value.copy()
            for cache in (key, value):
                cache[first, :, 140:], cache[second, :, 3:], cache[other] = poison, poison, poison
                if options:
                    cache[first, :, :132] = np.nan  # the row at 140 sees 132 and later
            poisoned = run(session, replace(call, past_key=key, past_value=value).feeds())[0]
            assert poisoned.tobytes() == clean.tobytes(), (options, poison)


@CACHE_TYPES
def test_nan_that_is_seen_is_kept_to_its_rows(cache_type: str) -> None:
    """A NaN in the cache reaches the rows whose window holds it and no other."""
    call = random_call([140], [6], heads=2, kv_heads=1, cache_type=cache_type)
    session = session_for(cache_type, window=9)
    clean = run(session, call.feeds())[0]
    call.past_value[call.slots[0], 0, 134, 5] = np.nan  # seen from 134 to 142
    output = run(session, call.feeds())[0]
    assert np.isnan(output[0, :3, :, 5]).all()
    output[0, :3, :, 5] = clean[0, :3, :, 5]
    assert output.tobytes() == clean.tobytes()


@pytest.mark.parametrize("own", OUTPUTS[1:])
def test_a_cache_in_a_separate_buffer_is_refused(own: str) -> None:
    """It would have to begin as a copy of every slot."""
    with pytest.raises(RuntimeError, match=f"{own}: got a buffer of its own, .*; bind both to one OrtValue"):
        run_in_place(session_for("float16"), random_call([20, 5], [2, 1]).feeds(), own)


def test_rollback_is_a_smaller_length() -> None:
    """After rejected tokens, a call with a smaller past gives what it gives on a cache that never held them."""
    session = session_for("float16")
    call = random_call([100], [5], capacity=110)
    held = [cache[call.slots] for cache in (call.past_key, call.past_value)]
    drafted = run(session, call.rows(0, 0, 5, *held).feeds())
    clean = run(session, call.rows(0, 0, 2, *held).feeds())
    later = random_call([102], [2], capacity=110, seed=1)
    results = [run(session, later.rows(0, 0, 2, *caches).feeds())[0] for _, *caches in (drafted, clean)]
    assert results[0].tobytes() == results[1].tobytes()


@CACHE_TYPES
def test_a_ring_gives_what_a_whole_cache_gives(cache_type: str) -> None:
    """With a window, a cache of 256 entries holds the latest of a text of 500, position p at p % 256."""
    session = session_for(cache_type, window=100)
    whole = random_call([490, 250], [10, 7], capacity=500, cache_type=cache_type)
    names = ("past_key", "past_value")
    rings = {name: np.full_like(getattr(whole, name)[:, :, :256], np.nan) for name in names}
    for name in names:
        for slot, past in zip(whole.slots, whole.past_lengths, strict=True):
            for position in range(past):
                rings[name][slot, :, position % 256] = getattr(whole, name)[slot, :, position]
    expected_output, expected_key, _ = run(session, whole.feeds(window=100))
    output, key, _ = run(session, whole.feeds(window=100) | rings)
    assert output.tobytes() == expected_output.tobytes()
    for slot, end in zip(whole.slots, (500, 257), strict=True):
        for position in range(end - 256, end):
            np.testing.assert_array_equal(key[slot, :, position % 256], expected_key[slot, :, position])


@pytest.mark.parametrize(
    ("capacity", "past", "new", "least"),
    [(128, 500, 30, 129), (128, 0, 129, 228), (200, 190, 11, 110), (127, 120, 9, 108)],
)
def test_a_ring_that_is_too_small_is_refused(capacity: int, past: int, new: int, least: int) -> None:
    """Rows would be overwritten that others see, or a span would not lie side by side."""
    session = session_for("float16", window=100)
    call = random_call([0], [new], capacity=capacity)
    message = (
        rf"past_lengths\[0\]: got {past} and {new} new, expected at most the cache's capacity {capacity} together, "
        f"or a capacity that is a multiple of 128 and at least {least} for a window of 100"
    )
    with pytest.raises(RuntimeError, match=message):
        run(session, call.feeds(window=100) | {"past_lengths": np.array([past], np.int32)})


def fixed_calls() -> Iterator[tuple[str, Array]]:
    """Outputs and caches over variants, cache types, head sizes and spans."""
    sizes = [(4, 2, 16), (6, 1, 20), (7, 7, 72), (9, 1, 64), (4, 2, 18)]
    for (variant, options), (heads, kv_heads, head_size) in [(v, s) for v in VARIANTS.items() for s in sizes]:
        for cache_type in ("float16", "float32"):
            call = random_call(
                [280, 0, 120], [9, 40, 1], heads=heads, kv_heads=kv_heads, head_size=head_size, cache_type=cache_type
            )
            results = run(session_for(cache_type, **options), call.feeds(**options))
            for name, array in zip(OUTPUTS, results, strict=True):
                yield f"{variant}-{cache_type}-{heads}-{head_size}-{name}", array


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
        ({"scale": 1.0, "first_distance": -(2**31)}, "attribute first_distance: got -2147483648, expected at most"),
        ({"scale": 1.0, "first_distance": -(2**63)}, "attribute first_distance: got -9223372036854775808"),
    ],
)
def test_wrong_attributes(attributes: dict[str, float | int | str], message: str) -> None:
    with pytest.raises(ERRORS.RuntimeException, match=message):
        attention_session(**attributes)


def zeros(*shape: int, dtype: str = "float32") -> Array:
    return np.zeros(shape, dtype)


def ints(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": zeros(1, 6, 32)}, r"query: got shape \[1, 6, 32\], expected \[1, tokens, heads, head_size\]"),
        ({"query": zeros(2, 3, 4, 8)}, r"query: got shape \[2, 3, 4, 8\], expected .* = \[1, 3, 4, 8\]"),
        ({"query": zeros(1, 6, 4, 7)}, "query: got head_size 7, expected a multiple of 2"),
        ({"query": zeros(1, 6, 4, 0)}, "query: got head_size 0, expected a multiple of 2"),
        ({"query": zeros(1, 6, 3, 8)}, "query: got 3 heads, expected a multiple of the 2 key-value heads"),
        ({"query": zeros(1, 6, 0, 8)}, "query: got 0 heads"),
        ({"query": zeros(1, 5, 4, 8)}, r"key: got shape \[1, 6, 2, 8\], expected .* = \[1, 5, 2, 8\]"),
        ({"query": zeros(1, 6, 4, 12)}, r"past_key: got shape \[3, 2, 10, 8\], expected .* = \[3, 2, 10, 12\]"),
        ({"past_key": zeros(3, 2, 80)}, r"past_key: got shape \[3, 2, 80\], expected \[slots, kv_heads, capacity"),
        ({"past_key": zeros(3, 0, 10, 8)}, "expected a multiple of the 0 key-value heads"),
        ({"past_value": zeros(3, 2, 9, 8)}, r"past_value: got shape \[3, 2, 9, 8\], expected the shape of past_key"),
        ({"past_value": zeros(2, 2, 10, 8)}, r"past_value: got shape \[2, 2, 10, 8\]"),
        ({"key": zeros(1, 5, 2, 8)}, r"key: got shape \[1, 5, 2, 8\], expected .* = \[1, 6, 2, 8\]"),
        ({"value": zeros(1, 6, 4, 8)}, r"value: got shape \[1, 6, 4, 8\], expected .* = \[1, 6, 2, 8\]"),
        ({"slots": zeros(1, 2, dtype="int32")}, r"slots: got shape \[1, 2\], expected \[sequences\]"),
        ({"slots": ints(0, 1, 2)}, r"slots: got shape \[3\], expected \[sequences\] = \[2\]"),
        ({"past_lengths": ints(0, 0, 0)}, r"past_lengths: got shape \[3\], expected \[sequences\] = \[2\]"),
        ({"new_lengths": zeros(2, 1, dtype="int32")}, r"new_lengths: got shape \[2, 1\]"),
        ({"slots": ints(0, 3)}, r"slots\[1\]: got 3, expected 0 to 2"),
        ({"slots": ints(-1, 0)}, r"slots\[0\]: got -1, expected 0 to 2"),
        ({"slots": ints(2**31 - 1, 0)}, r"slots\[0\]: got 2147483647"),
        ({"slots": ints(2, 2)}, r"slots\[1\]: got 2 a second time, expected a slot for each sequence"),
        ({"past_lengths": ints(1, -1)}, r"past_lengths\[1\]: got -1, expected 0 or more"),
        ({"new_lengths": ints(-2, 8)}, r"new_lengths\[0\]: got -2, expected 1 or more"),
        ({"new_lengths": ints(6, 0)}, r"new_lengths\[1\]: got 0, expected 1 or more"),
        ({"new_lengths": ints(3, 4)}, "new_lengths: got 7 tokens together, expected the 6 of the call"),
        ({"new_lengths": ints(1, 4)}, "new_lengths: got 5 tokens together, expected the 6 of the call"),
        ({"past_lengths": ints(7, 8)}, r"past_lengths\[1\]: got 8 and 3 new, .* capacity 10 together"),
        ({"past_lengths": ints(2**31 - 1, 0)}, r"past_lengths\[0\]: got 2147483647 and 3 new"),
        ({"past_lengths": ints(-(2**31), 0)}, r"past_lengths\[0\]: got -2147483648"),
        ({"sinks": zeros(3)}, r"sinks: got shape \[3\], expected \[heads\] = \[4\]"),
        ({"alibi_slopes": zeros(2)}, r"alibi_slopes: got shape \[2\], expected \[heads\] = \[4\]"),
        (
            {"distance_bias": zeros(2, 9)},
            r"distance_bias: got shape \[2, 9\], expected \[heads, distances\] with 4 heads",
        ),
        ({"distance_bias": zeros(4, 0)}, r"distance_bias: got shape \[4, 0\], expected .* and a distance"),
        ({"distance_bias": zeros(4)}, r"distance_bias: got shape \[4\], expected \[heads, distances\]"),
    ],
)
def test_wrong_shapes_and_lengths(change: dict[str, Array], message: str) -> None:
    call = random_call([0, 0], [3, 3], head_size=8, capacity=10, cache_type="float32")
    options = {option: int(name in change) for option, name in OPTIONAL.items()}
    session = session_for("float32", **options)
    run(session, call.feeds(**options))
    with pytest.raises(RuntimeError, match=message):
        run(session, call.feeds(**options) | change)


@pytest.mark.parametrize(
    "types",
    [
        {"query": TensorProto.DOUBLE},
        {"key": HALF},
        {"past_key": TensorProto.BFLOAT16, "past_value": TensorProto.BFLOAT16},
        {"past_key": HALF, "past_value": FLOAT},
        {"past_lengths": TensorProto.INT64},
        {"slots": TensorProto.INT64},
    ],
    ids=lambda types: "-".join(types),
)
def test_wrong_types(types: dict[str, int]) -> None:
    with pytest.raises(WRONG_TYPE):
        attention_session(types, scale=1.0)
