"""EncoderAttention, StoreKeyValue and CrossAttention through ONNX Runtime: right against float64."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from mxspec.compile.graph.operators import (
    ATTENTION,
    CROSS_ATTENTION,
    ENCODER_ATTENTION,
    STORE_KEY_VALUE,
    Operator,
)
from tests.runtime.ops.one_node import ERRORS, WRONG_TYPE, Feeds, open_node
from tests.runtime.ops.one_node import run_in_place as run

Array = NDArray[Any]
SCALE = 0.3
LENGTHS = ("slots", "past_lengths", "encoder_lengths", "new_lengths")
PASTS = ("past_key", "past_value")
CACHE_TYPES = pytest.mark.parametrize("cache_type", ["float16", "float32"])
THREADS = pytest.mark.parametrize("threads", [1, 2, 3])
SIZES = [(4, 2, 16), (6, 1, 20), (7, 7, 72), (10, 2, 64), (3, 3, 18)]  # heads, kv_heads, head_size
EVERY_SIZE = pytest.mark.parametrize("sizes", SIZES, ids=str)


@cache
def session_of(
    operator: Operator, cache_type: str = "float32", present: tuple[str, ...] = (), **attributes: Any
) -> Any:
    """A graph of one node whose operands are all inputs, of any shape; `present` are its optional inputs."""
    types = dict.fromkeys(PASTS, TensorProto.FLOAT16 if cache_type == "float16" else TensorProto.FLOAT)
    types |= dict.fromkeys(LENGTHS, TensorProto.INT32)
    inputs = [
        name.removesuffix("?") if not name.endswith("?") or name[:-1] in present else "" for name in operator.inputs
    ]
    types |= {name.replace("past", "present"): types[name] for name in PASTS}
    scale = {} if operator is STORE_KEY_VALUE else {"scale": SCALE}
    return open_node(operator.name, inputs, operator.outputs, types, **scale | attributes)


def ints(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).normal(0, 1, shape).astype(np.float32)


def attended(query: Array, keys: Array, values: Array, *, softcap: float = 0.0, biases: Array | float = 0.0) -> Array:
    """float64[rows, head_size] of queries [rows, head_size] that see all of keys and values, from the definition."""
    query, keys, values = (array.astype(np.float64) for array in (query, keys, values))
    scores = query @ keys.T * float(np.float32(SCALE))
    scores = softcap * np.tanh(scores / softcap) if softcap else scores
    weights = np.exp(scores + biases - (scores + biases).max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ values


def slices(lengths: Sequence[int]) -> list[slice]:
    """Where the tokens of each sequence stand."""
    ends = np.cumsum(lengths)
    return [slice(int(end) - length, int(end)) for end, length in zip(ends, lengths, strict=True)]


# EncoderAttention

ENCODERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "softcap": {"softcap": 3.0},
    "distances": {"distances": 183, "first_distance": -91},
    "few distances": {"distances": 5, "first_distance": -2},
    "distances on one side": {"distances": 20, "first_distance": 3},
}
EVERY_ENCODER = pytest.mark.parametrize("variant", ENCODERS)


def encoder_feeds(lengths: Sequence[int], sizes: tuple[int, int, int], distances: int = 0, **_: Any) -> Feeds:
    (heads, kv_heads, head_size), tokens = sizes, sum(lengths)
    feeds = {
        "query": normal(1, tokens, heads, head_size),
        "key": normal(1, tokens, kv_heads, head_size, seed=1),
        "value": normal(1, tokens, kv_heads, head_size, seed=2),
        "new_lengths": ints(*lengths),
    }
    return feeds | ({"distance_bias": normal(heads, distances)} if distances else {})


def encoder(distances: int = 0, **attributes: Any) -> Any:
    return session_of(ENCODER_ATTENTION, present=("distance_bias",) if distances else (), **attributes)


def of_sequence(feeds: Feeds, tokens: slice) -> Feeds:
    """The call of one sequence alone."""
    alone = {name: feeds[name][:, tokens] for name in ("query", "key", "value")}
    return feeds | alone | {"new_lengths": ints(tokens.stop - tokens.start)}


@EVERY_ENCODER
@EVERY_SIZE
@pytest.mark.parametrize("lengths", [[1], [300], [5, 1, 130, 64], [2] * 9], ids=str)
def test_encoder_equals_float64(variant: str, sizes: tuple[int, int, int], lengths: list[int]) -> None:
    options = ENCODERS[variant]
    feeds = encoder_feeds(lengths, sizes, **options)
    output = run(encoder(**options), feeds)["output"]
    expected = np.zeros(output.shape)
    for tokens, head in ((tokens, head) for tokens in slices(lengths) for head in range(sizes[0])):
        biases: Array | float = 0.0
        if count := options.get("distances", 0):
            positions = np.arange(tokens.stop - tokens.start)
            distance = positions - positions[:, None] - options["first_distance"]
            biases = feeds["distance_bias"][head][np.clip(distance, 0, count - 1)].astype(np.float64)
        key, value = (feeds[name][0, tokens, head * sizes[1] // sizes[0]] for name in ("key", "value"))
        query = feeds["query"][0, tokens, head]
        expected[0, tokens, head] = attended(query, key, value, softcap=options.get("softcap", 0.0), biases=biases)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)


@EVERY_ENCODER
@THREADS
def test_encoded_text_does_not_depend_on_the_rest_of_the_batch(variant: str, threads: int) -> None:
    options, sizes, lengths = ENCODERS[variant], (6, 2, 20), [40, 1, 200, 17]
    feeds = encoder_feeds(lengths, sizes, **options)
    together = run(encoder(**options), feeds)["output"]
    for tokens in slices(lengths):
        alone = run(encoder(**options), of_sequence(feeds, tokens))["output"]
        assert alone.tobytes() == together[:, tokens].tobytes(), tokens
    order = [slices(lengths)[i] for i in (2, 0, 3, 1)]
    parts = {name: np.concatenate([feeds[name][:, t] for t in order], axis=1) for name in ("query", "key", "value")}
    moved = run(encoder(**options), feeds | parts | {"new_lengths": ints(*(t.stop - t.start for t in order))})["output"]
    assert moved.tobytes() == np.concatenate([together[:, t] for t in order], axis=1).tobytes()


def test_another_text_does_not_leak_into_an_encoded_one() -> None:
    lengths = [130, 20, 3]
    feeds = encoder_feeds(lengths, (4, 2, 16))
    clean = run(encoder(), feeds)["output"]
    assert np.isfinite(clean).all()
    for name in ("query", "key", "value"):
        feeds[name][0, slices(lengths)[1]] = np.nan
    output = run(encoder(), feeds)["output"]
    assert np.isnan(output[0, slices(lengths)[1]]).all()
    for tokens in (slices(lengths)[0], slices(lengths)[2]):
        assert output[0, tokens].tobytes() == clean[0, tokens].tobytes()


# StoreKeyValue


def store_feeds(
    lengths: Sequence[int], cache_type: str, kv_heads: int = 3, head_size: int = 20, room: int = 200
) -> Feeds:
    """Slots in no order, one of which is nobody's; the cache is NaN."""
    slots = np.random.default_rng(0).permutation(len(lengths) + 1)[: len(lengths)]
    caches = np.full((2, len(lengths) + 1, kv_heads, room, head_size), np.nan, cache_type)
    return {
        "key": normal(1, sum(lengths), kv_heads, head_size),
        "value": normal(1, sum(lengths), kv_heads, head_size, seed=1),
        **dict(zip(PASTS, caches, strict=True)),
        "slots": slots.astype(np.int32),
        "new_lengths": ints(*lengths),
    }


@CACHE_TYPES
@THREADS
@pytest.mark.parametrize("lengths", [[200], [3, 1, 150], []], ids=str)
def test_store_writes_the_first_entries_of_each_slot(cache_type: str, threads: int, lengths: list[int]) -> None:
    feeds = store_feeds(lengths, cache_type)
    stored = run(session_of(STORE_KEY_VALUE, cache_type), feeds)
    for past, fresh in zip(PASTS, ("key", "value"), strict=True):
        expected = feeds[past].copy()
        for slot, tokens in zip(feeds["slots"], slices(lengths), strict=True):
            expected[slot, :, : tokens.stop - tokens.start] = feeds[fresh][0, tokens].transpose(1, 0, 2)
        np.testing.assert_array_equal(stored[past], expected)  # NaN equals NaN here


@pytest.mark.parametrize("name", ["key", "value"])
@pytest.mark.parametrize("value", [65520.0, -7e4, np.inf])
def test_a_value_that_float16_cannot_hold_is_refused(name: str, value: float) -> None:
    feeds = store_feeds([5, 3], "float16")
    feeds[name][0, 6, 1, 19] = value
    arrays = {name: array.copy() for name, array in feeds.items()}
    session, values = (
        session_of(STORE_KEY_VALUE, "float16"),
        {n: ort.OrtValue.ortvalue_from_numpy(a) for n, a in arrays.items()},
    )
    binding = session.io_binding()
    for bound, array in values.items():
        binding.bind_ortvalue_input(bound, array)
    for past in PASTS:
        binding.bind_ortvalue_output(past.replace("past", "present"), values[past])
    message = f"mxspec.StoreKeyValue: {name}: got {value:f}.*float16.*; compile with --caches float32 or mxint8"
    with pytest.raises(RuntimeError, match=message):
        session.run_with_iobinding(binding)
    assert all(np.isnan(arrays[past]).all() for past in PASTS)  # nothing was written


def test_values_of_float16_and_float32() -> None:
    feeds = store_feeds([2], "float16")
    feeds["key"][0, 0, 0, :3] = 65519.99, -65504, np.nan
    stored = run(session_of(STORE_KEY_VALUE, "float16"), feeds)["past_key"][feeds["slots"][0], 0, 0, :3]
    np.testing.assert_array_equal(stored, np.array([65504, -65504, np.nan], np.float16))
    feeds = store_feeds([2], "float32")
    feeds["key"][0, 0, 0, :2] = 1e30, -np.inf
    stored = run(session_of(STORE_KEY_VALUE, "float32"), feeds)["past_key"][feeds["slots"][0], 0, 0, :2]
    np.testing.assert_array_equal(stored, np.array([1e30, -np.inf], np.float32))


@pytest.mark.parametrize("own", ["present_key", "present_value"])
def test_a_cache_in_a_separate_buffer_is_refused(own: str) -> None:
    with pytest.raises(RuntimeError, match=f"{own}: got a buffer of its own, .*; bind both to one OrtValue"):
        run(session_of(STORE_KEY_VALUE, "float16"), store_feeds([5], "float16"), own)


# CrossAttention


def cross_feeds(
    encoded: Sequence[int],
    new: Sequence[int],
    sizes: tuple[int, int, int],
    cache_type: str = "float16",
    room: int = 520,
) -> Feeds:
    """Slots in no order, one of which is nobody's; the cache is NaN where nothing is encoded."""
    heads, kv_heads, head_size = sizes
    slots = np.random.default_rng(0).permutation(len(encoded) + 1)[: len(encoded)]
    caches = np.full((2, len(encoded) + 1, kv_heads, room, head_size), np.nan, cache_type)
    for i, (slot, length) in enumerate(zip(slots, encoded, strict=True)):
        caches[:, slot, :, :length] = normal(2, kv_heads, length, head_size, seed=i)
    return {
        "query": normal(1, sum(new), heads, head_size),
        **dict(zip(PASTS, caches, strict=True)),
        "slots": slots.astype(np.int32),
        "encoder_lengths": ints(*encoded),
        "new_lengths": ints(*new),
    }


def of_rows(feeds: Feeds, sequence: int, rows: slice) -> Feeds:
    """The call of some rows of one sequence, all sequences' entries being where they were."""
    one = {name: feeds[name][sequence : sequence + 1] for name in ("slots", "encoder_lengths")}
    return feeds | one | {"query": feeds["query"][:, rows], "new_lengths": ints(rows.stop - rows.start)}


@CACHE_TYPES
@EVERY_SIZE
@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize(
    ("encoded", "new"),
    [([512], [1]), ([128], [70]), ([1, 520, 129, 60], [5, 1, 12, 80])],
    ids=["step", "many", "ragged"],
)
def test_cross_equals_float64(
    cache_type: str, sizes: tuple[int, int, int], softcap: float, encoded: list[int], new: list[int]
) -> None:
    feeds = cross_feeds(encoded, new, sizes, cache_type)
    results = run(session_of(CROSS_ATTENTION, cache_type, softcap=softcap), feeds)
    expected = np.zeros(feeds["query"].shape)
    for (i, rows), head in ((item, head) for item in enumerate(slices(new)) for head in range(sizes[0])):
        entry = (feeds["slots"][i], head * sizes[1] // sizes[0], slice(encoded[i]))
        keys, values = (feeds[name][entry] for name in PASTS)
        expected[0, rows, head] = attended(feeds["query"][0, rows, head], keys, values, softcap=softcap)
    np.testing.assert_allclose(results["output"], expected, rtol=0, atol=1e-5)
    for past in PASTS:
        assert results[past].tobytes() == feeds[past].tobytes()  # nothing is written


@CACHE_TYPES
@THREADS
@pytest.mark.parametrize("sizes", [(6, 2, 20), (8, 8, 64)], ids=str)
def test_cross_row_does_not_depend_on_the_rest_of_the_batch(
    cache_type: str, threads: int, sizes: tuple[int, int, int]
) -> None:
    new = [9, 1, 80, 3]
    feeds = cross_feeds([400, 520, 1, 129], new, sizes, cache_type)
    session = session_of(CROSS_ATTENTION, cache_type)
    together = run(session, feeds)["output"]
    for sequence, tokens in enumerate(slices(new)):
        for chunk in (1, 7, 100):
            for first in range(tokens.start, tokens.stop, chunk):
                rows = slice(first, min(first + chunk, tokens.stop))
                alone = run(session, of_rows(feeds, sequence, rows))["output"]
                assert alone.tobytes() == together[:, rows].tobytes(), (sequence, rows)


@CACHE_TYPES
def test_entries_beyond_the_encoded_text_do_not_leak(cache_type: str) -> None:
    encoded = [140, 3]
    feeds = cross_feeds(encoded, [4, 4], (4, 2, 16), cache_type)
    session = session_of(CROSS_ATTENTION, cache_type)
    clean = run(session, feeds)["output"]
    assert np.isfinite(clean).all()
    taken = np.zeros(feeds["past_key"].shape, bool)
    for slot, length in zip(feeds["slots"], encoded, strict=True):
        taken[slot, :, :length] = True
    for poison in (np.inf, 65504, 0):
        poisoned = {name: np.where(taken, feeds[name], np.array(poison, cache_type)) for name in PASTS}
        assert run(session, feeds | poisoned)["output"].tobytes() == clean.tobytes()


@CACHE_TYPES
def test_cross_row_has_the_bits_of_a_causal_one_that_sees_the_same(cache_type: str) -> None:
    """One kernel: the last row of a text of Attention, whose keys and values stand in the cache already."""
    feeds = cross_feeds([400], [1], (6, 2, 20), cache_type)
    slot = feeds["slots"][0]
    newest = (feeds[past][slot, :, 399].astype(np.float32)[None, None] for past in PASTS)
    last = dict(zip(("key", "value"), newest, strict=True))
    causal = {name: array for name, array in feeds.items() if name != "encoder_lengths"} | {"past_lengths": ints(399)}
    output = run(session_of(ATTENTION, cache_type), causal | last)["output"]
    assert output.tobytes() == run(session_of(CROSS_ATTENTION, cache_type), feeds)["output"].tobytes()


@THREADS
def test_an_encoder_row_has_the_bits_of_cross_attention_over_stored_entries(threads: int) -> None:
    lengths = [150, 1, 33]
    feeds = encoder_feeds(lengths, (6, 2, 20))
    cached = store_feeds(lengths, "float32", 2, 20) | {name: feeds[name] for name in ("key", "value")}
    stored = run(session_of(STORE_KEY_VALUE), cached)
    cross = {name: cached[name] for name in ("slots", "new_lengths")} | stored | {"query": feeds["query"]}
    output = run(session_of(CROSS_ATTENTION), cross | {"encoder_lengths": ints(*lengths)})["output"]
    assert output.tobytes() == run(encoder(), feeds)["output"].tobytes()


# All of them


def test_calls_of_no_sequences() -> None:
    assert run(encoder(), encoder_feeds([], (4, 2, 8)))["output"].shape == (1, 0, 4, 8)
    assert run(session_of(CROSS_ATTENTION, "float16"), cross_feeds([], [], (4, 2, 8)))["output"].shape == (
        1,
        0,
        4,
        8,
    )


def fixed_calls() -> Feeds:
    results: Feeds = {}
    for sizes in SIZES:
        for variant, options in ENCODERS.items():
            feeds = encoder_feeds([150, 1, 33], sizes, **options)
            results[f"{variant}-{sizes}"] = run(encoder(**options), feeds)["output"]
        for cache_type in ("float16", "float32"):
            feeds = cross_feeds([300, 1, 130], [9, 40, 1], sizes, cache_type)
            results[f"cross-{cache_type}-{sizes}"] = run(session_of(CROSS_ATTENTION, cache_type), feeds)["output"]
            stored = run(session_of(STORE_KEY_VALUE, cache_type), store_feeds([30, 1], cache_type, *sizes[1:]))
            results |= {f"store-{cache_type}-{sizes}-{name}": array for name, array in stored.items()}
    return results


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


ENCODER = encoder_feeds([3, 3], (4, 2, 8), distances=5)
STORE = store_feeds([3, 3], "float32", 2, 8, room=10)
CROSS = cross_feeds([4, 10], [3, 3], (4, 2, 8), "float32", room=10)


WRONG: dict[Operator, list[tuple[Feeds, str]]] = {
    ENCODER_ATTENTION: [
        ({"query": zeros(1, 6, 32)}, r"query: got shape \[1, 6, 32\], expected \[1, tokens, heads"),
        ({"query": zeros(2, 3, 4, 8)}, r"query: got shape \[2, 3, 4, 8\]"),
        ({"query": zeros(1, 6, 3, 8)}, "query: got 3 heads, expected a multiple of the 2 key-value"),
        ({"query": zeros(1, 6, 4, 7)}, "query: got head_size 7, expected a multiple of 2"),
        ({"key": zeros(1, 6, 16)}, r"key: got shape \[1, 6, 16\], expected \[1, tokens, kv_heads"),
        ({"key": zeros(1, 5, 2, 8)}, r"key: got shape \[1, 5, 2, 8\], expected .* = \[1, 6, 2, 8\]"),
        ({"key": zeros(1, 6, 2, 4)}, r"key: got shape \[1, 6, 2, 4\], expected .* = \[1, 6, 2, 8\]"),
        ({"key": zeros(1, 6, 0, 8)}, "query: got 4 heads, expected a multiple of the 0 key-value heads"),
        ({"value": zeros(1, 6, 4, 8)}, r"value: got shape \[1, 6, 4, 8\]"),
        ({"new_lengths": ints(3, 4)}, "new_lengths: got 7 tokens together, expected the 6"),
        ({"new_lengths": ints(6, 0)}, r"new_lengths\[1\]: got 0, expected 1 or more"),
        ({"new_lengths": ints(-(2**31), 6)}, r"new_lengths\[0\]: got -2147483648"),
        ({"new_lengths": ints(6)[None]}, r"new_lengths: got shape \[1, 1\], expected \[sequences\]"),
        ({"distance_bias": zeros(2, 5)}, r"distance_bias: got shape \[2, 5\], .* with 4 heads"),
        ({"distance_bias": zeros(4, 0)}, r"distance_bias: got shape \[4, 0\], .* and a distance"),
    ],
    STORE_KEY_VALUE: [
        ({"key": zeros(1, 6, 16)}, r"key: got shape \[1, 6, 16\], expected \[1, tokens, kv_heads"),
        ({"key": zeros(2, 3, 2, 8)}, r"key: got shape \[2, 3, 2, 8\], expected .* = \[1, 3, 2, 8\]"),
        ({"key": zeros(1, 6, 3, 8)}, r"key: got shape \[1, 6, 3, 8\], expected .* = \[1, 6, 2, 8\]"),
        ({"value": zeros(1, 5, 2, 8)}, r"value: got shape \[1, 5, 2, 8\]"),
        ({"past_key": zeros(3, 2, 80)}, r"past_key: got shape \[3, 2, 80\], expected \[slots, kv_heads"),
        ({"past_value": zeros(3, 2, 9, 8)}, r"past_value: got shape .*, expected the shape of past_key"),
        ({"slots": ints(0, 3)}, r"slots\[1\]: got 3, expected 0 to 2"),
        ({"slots": ints(-1, 0)}, r"slots\[0\]: got -1, expected 0 to 2"),
        ({"slots": ints(2, 2)}, r"slots\[1\]: got 2 a second time"),
        ({"slots": ints(0)}, r"slots: got shape \[1\], expected \[sequences\] = \[2\]"),
        ({"new_lengths": ints(5, 2)}, "new_lengths: got 7 tokens together, expected the 6"),
        (
            {"key": zeros(1, 12, 2, 8), "value": zeros(1, 12, 2, 8), "new_lengths": ints(1, 11)},
            r"new_lengths\[1\]: got 11, expected at most the cache's capacity 10",
        ),
    ],
    CROSS_ATTENTION: [
        ({"query": zeros(1, 6, 3, 8)}, "query: got 3 heads, expected a multiple of the 2 key-value"),
        ({"query": zeros(1, 6, 4, 6)}, r"past_key: got shape \[3, 2, 10, 8\], .* = \[3, 2, 10, 6\]"),
        ({"past_key": zeros(3, 2, 80)}, r"past_key: got shape \[3, 2, 80\], expected \[slots"),
        ({"past_value": zeros(2, 2, 10, 8)}, r"past_value: got shape \[2, 2, 10, 8\]"),
        ({"slots": ints(1, 1)}, r"slots\[1\]: got 1 a second time, expected a slot for each sequence"),
        ({"slots": ints(0, 2**31 - 1)}, r"slots\[1\]: got 2147483647, expected 0 to 2"),
        ({"encoder_lengths": ints(4, 0)}, r"encoder_lengths\[1\]: got 0, expected 1 to .* capacity 10"),
        ({"encoder_lengths": ints(11, 4)}, r"encoder_lengths\[0\]: got 11, expected 1 to .* capacity 10"),
        ({"encoder_lengths": ints(4, -(2**31))}, r"encoder_lengths\[1\]: got -2147483648"),
        ({"encoder_lengths": ints(4)}, r"encoder_lengths: got shape \[1\], expected .* = \[2\]"),
        ({"new_lengths": ints(3, 2)}, "new_lengths: got 5 tokens together, expected the 6 of the call"),
    ],
}


@pytest.mark.parametrize(
    ("operator", "change", "message"), [(operator, *case) for operator, cases in WRONG.items() for case in cases]
)
def test_wrong_shapes_and_lengths(operator: Operator, change: Feeds, message: str) -> None:
    feeds = {ENCODER_ATTENTION: ENCODER, STORE_KEY_VALUE: STORE, CROSS_ATTENTION: CROSS}[operator]
    session = session_of(operator, present=("distance_bias",))
    run(session, feeds)
    with pytest.raises(RuntimeError, match=f"mxspec.{operator.name}: {message}"):
        run(session, feeds | change)


@pytest.mark.parametrize("operator", [ENCODER_ATTENTION, CROSS_ATTENTION], ids=lambda operator: operator.name)
@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"scale": float("inf")}, "attribute scale: got inf"),
        ({"softcap": -1.0}, "attribute softcap: got -1"),
        ({"softcap": 1}, "attribute softcap: missing, or not a float"),
    ],
)
def test_wrong_attributes(operator: Operator, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ERRORS.RuntimeException, match=message):
        session_of(operator, **attributes)


@pytest.mark.parametrize("operator", [STORE_KEY_VALUE, CROSS_ATTENTION], ids=lambda operator: operator.name)
def test_caches_of_two_types_are_refused(operator: Operator) -> None:
    types = dict.fromkeys(LENGTHS, TensorProto.INT32) | {"past_key": TensorProto.FLOAT16}
    with pytest.raises(WRONG_TYPE):
        open_node(operator.name, operator.inputs, operator.outputs, types, scale=SCALE)
