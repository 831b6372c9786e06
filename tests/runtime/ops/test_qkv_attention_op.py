"""QkvAttention through ONNX Runtime: the bits of the operators that it takes the place of, whatever the call.

Those are held to float64 by their own tests.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from mxspec.runtime import ops
from tests.runtime.ops.one_node import ERRORS, FLOAT, Feeds, open_nodes, run_in_place

Array = NDArray[Any]
INT32 = TensorProto.INT32
CACHES = {"float16": TensorProto.FLOAT16, "float32": FLOAT}
PASTS = ("past_key", "past_value")
LENGTHS = ("slots", "past_lengths", "new_lengths")
INPUTS = ("qkv", *PASTS, *LENGTHS)
TABLES, NORMS, SCORES = (
    ("cos", "sin"),
    ("query_norm_weight", "key_norm_weight"),
    ("alibi_slopes", "sinks", "distance_bias"),
)
OPTIONAL = (*TABLES, *NORMS, *SCORES)
OUTPUTS = ("output", "present_key", "present_value")
ATTRIBUTES = {"scale": 0.3, "softcap": 20.0, "window": 50, "first_distance": -20}
EPSILON = 1e-5


class Form(NamedTuple):
    """What a fused product holds, and what happens to its queries and keys."""

    heads: int
    kv_heads: int
    head_size: int
    rotary: int  # 0: no rotation
    norm: str = ""  # of each head, or of all heads together
    interleaved: bool = False
    pairs: bool = False
    scores: bool = False  # slopes, sinks and biases by distance

    def norm_sizes(self) -> tuple[int, int]:
        """Lengths of the weights of queries and keys."""
        heads = (self.heads, self.kv_heads) if self.norm == "all" else (1, 1)
        return heads[0] * self.head_size, heads[1] * self.head_size

    def inputs(self) -> list[str]:
        """The operator's inputs; the name of an absent one is empty."""
        absent = TABLES * (not self.rotary) + NORMS * (not self.norm) + SCORES * (not self.scores)
        return [*INPUTS, *("" if name in absent else name for name in OPTIONAL)]


FORMS = [
    Form(4, 2, 16, 16),
    Form(6, 1, 20, 8),
    Form(3, 3, 64, 64),
    Form(8, 2, 12, 0),
    Form(4, 2, 16, 16, norm="head"),
    Form(6, 2, 20, 8, norm="all"),
    Form(4, 1, 64, 0, norm="head"),
    Form(6, 2, 12, 8, interleaved=True),
    Form(5, 5, 16, 4, interleaved=True, norm="head"),
    Form(4, 2, 18, 10, pairs=True),
    Form(4, 2, 16, 0, interleaved=True, scores=True),
]
EVERY_FORM = pytest.mark.parametrize("form", FORMS, ids=str)
CACHE_TYPES = pytest.mark.parametrize("cache_type", CACHES)


def open_session(nodes: list[onnx.NodeProto], cache_type: str, names: list[str]) -> ort.InferenceSession:
    """A session on nodes from the named inputs to the outputs."""
    caches = dict.fromkeys((*PASTS, *OUTPUTS[1:]), CACHES[cache_type])
    return open_nodes(nodes, names, OUTPUTS, caches | dict.fromkeys(LENGTHS, INT32))


def run(session: ort.InferenceSession, feeds: Feeds) -> list[Array]:
    """Output and caches of a call whose presents are bound to copies of its pasts."""
    found = run_in_place(session, feeds)
    return [found[name] for name in ("output", *PASTS)]


@cache
def fused(cache_type: str, form: Form) -> ort.InferenceSession:
    attributes = ATTRIBUTES | {"norm_epsilon": EPSILON} if form.norm else ATTRIBUTES
    attributes = attributes | {"interleaved": int(form.interleaved), "pairs": int(form.pairs)}
    inputs = form.inputs()
    node = helper.make_node("QkvAttention", inputs, OUTPUTS, domain="mxspec", **attributes)
    return open_session([node], cache_type, inputs)


@cache
def separate(cache_type: str, form: Form) -> ort.InferenceSession:
    """Split, head views, norms, RotaryEmbedding, Attention and the flat view of its output."""
    heads, kv_heads, head_size, rotary, norm, interleaved, pairs, scores = form
    nodes = []

    def emit(operator: str, inputs: list[str], output: str, domain: str = "", **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [output], domain=domain, **attributes))
        return output

    def view(name: str, *shape: int) -> str:
        target = emit("Constant", [], f"{name}_{shape}", value_ints=[0, 0, *shape])
        return emit("Reshape", [name, target], f"{name}_as_{shape}")

    def normed(name: str, what: str) -> str:
        zeros = emit("Mul", [name, emit("Constant", [], f"{name}_zero", value_float=0.0)], f"{name}_zeros")
        inputs, outputs = [name, zeros, f"{what}_norm_weight"], [f"{name}_normed", f"{name}_sum"]
        nodes.append(helper.make_node("AddRMSNorm", inputs, outputs, domain="mxspec", epsilon=EPSILON))
        return outputs[0]

    groups = kv_heads if interleaved else 1
    source = view("qkv", groups, -1) if interleaved else "qkv"
    sizes = [count * head_size // groups for count in (heads, kv_heads, kv_heads)]
    emit("Constant", [], "sizes", value_ints=sizes)
    nodes.append(helper.make_node("Split", [source, "sizes"], ["query", "key", "value"], axis=-1))
    operands = []
    for name, count in (("query", heads), ("key", kv_heads), ("value", kv_heads)):
        flat = normed(name, name) if norm == "all" and name != "value" else name
        part = view(flat, count, head_size)
        if norm == "head" and name != "value":
            part = normed(part, name)
        if rotary and name != "value":
            part = emit("RotaryEmbedding", [part, "cos", "sin"], f"{name}_rotated", "mxspec", pairs=int(pairs))
        operands.append(part)
    outputs = ["by_heads", *OUTPUTS[1:]]
    inputs = [*operands, *INPUTS[1:], *SCORES * scores]
    nodes.append(helper.make_node("Attention", inputs, outputs, domain="mxspec", **ATTRIBUTES))
    emit("Constant", [], "flat", value_ints=[0, 0, heads * head_size])
    emit("Reshape", ["by_heads", "flat"], "output")
    return open_session(nodes, cache_type, form.inputs())


def random_feeds(form: Form, past: list[int], new: list[int], cache_type: str) -> Feeds:
    """The operands of one call; the cache is NaN where no past is, and one slot is nobody's."""
    random = np.random.default_rng(sum(form[:4]))
    heads, kv_heads, head_size, rotary, *_ = form
    tokens, slots = sum(new), len(past) + 1
    caches = np.full((2, slots, kv_heads, 200, head_size), np.nan, cache_type)
    taken = random.permutation(slots)[: len(past)]
    for slot, length in zip(taken, past, strict=True):
        caches[:, slot, :, :length] = random.standard_normal((2, kv_heads, length, head_size))
    feeds = {
        "qkv": random.standard_normal((1, tokens, (heads + 2 * kv_heads) * head_size), np.float32),
        "past_key": caches[0],
        "past_value": caches[1],
        "slots": taken.astype(np.int32),
        "past_lengths": np.array(past, np.int32),
        "new_lengths": np.array(new, np.int32),
    }
    if rotary:
        feeds["cos"], feeds["sin"] = random.standard_normal((2, 1, tokens, rotary // 2), np.float32)
    if form.norm:
        for name, size in zip(NORMS, form.norm_sizes(), strict=True):
            feeds[name] = random.standard_normal(size, np.float32)
    if form.scores:
        feeds["alibi_slopes"], feeds["sinks"] = random.standard_normal((2, heads), np.float32)
        feeds["distance_bias"] = random.standard_normal((heads, 15), np.float32)
    return feeds


@CACHE_TYPES
@EVERY_FORM
@pytest.mark.parametrize(("past", "new"), [([0], [150]), ([130], [1]), ([90, 0, 20], [7, 12, 1])], ids=str)
def test_has_the_bits_of_the_separate_operators(form: Form, past: list[int], new: list[int], cache_type: str) -> None:
    feeds = random_feeds(form, past, new, cache_type)
    expected = run(separate(cache_type, form), feeds)
    got = run(fused(cache_type, form), feeds)
    assert np.abs(got[0]).max() > 0
    for name, a, b in zip(OUTPUTS, got, expected, strict=True):
        assert a.shape == b.shape, name
        assert a.tobytes() == b.tobytes(), name


@EVERY_FORM
@pytest.mark.parametrize("threads", [1, 3])
def test_row_does_not_depend_on_the_rest_of_the_batch(form: Form, threads: int) -> None:
    """A call of two sequences and the single steps of its rows: equal outputs, equal caches."""
    feeds = random_feeds(form, [40, 0], [9, 30], "float16")
    session = fused("float16", form)
    together = run(session, feeds)
    ops.set_threads(1)
    row = 0
    for slot, past, new in zip(*(feeds[name] for name in LENGTHS), strict=True):
        caches = [feeds[name][slot : slot + 1] for name in PASTS]
        for i in range(new):
            step = {name: feeds[name] for name in OPTIONAL[2:] if name in feeds}
            step |= {name: feeds[name][:, row : row + 1] for name in ("qkv", "cos", "sin") if name in feeds}
            lengths = np.array([[0], [past + i], [1]], np.int32)
            step |= dict(zip((*PASTS, *LENGTHS), [*caches, *lengths], strict=True))
            output, *caches = run(session, step)
            assert output[0, 0].tobytes() == together[0][0, row].tobytes(), (slot, i)
            row += 1
        assert [cache[0].tobytes() for cache in caches] == [cache[slot].tobytes() for cache in together[1:]]


def fixed_calls() -> Feeds:
    results: Feeds = {}
    for form in FORMS:
        feeds = random_feeds(form, [100, 0], [5, 20], "float16")
        outputs = run(fused("float16", form), feeds)
        results |= {f"{form}-{name}": array for name, array in zip(OUTPUTS, outputs, strict=True)}
    return results


def zeros(*shape: int, dtype: str = "float32") -> Array:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qkv": zeros(6, 128)}, r"qkv: got shape \[6, 128\], expected \[1, tokens, \(heads \+ 2 kv_heads\) \* head"),
        ({"qkv": zeros(2, 3, 128)}, r"qkv: got shape \[2, 3, 128\], expected \[1, tokens"),
        ({"qkv": zeros(1, 6, 120)}, r"qkv: got shape \[1, 6, 120\].* for past_key \[3, 2, 200, 16\]"),
        ({"qkv": zeros(1, 6, 112)}, r"qkv: got shape \[1, 6, 112\].* with heads a multiple of kv_heads"),
        ({"qkv": zeros(1, 6, 64)}, r"qkv: got shape \[1, 6, 64\]"),
        ({"qkv": zeros(1, 6, 0)}, r"qkv: got shape \[1, 6, 0\]"),
        ({"past_key": zeros(3, 200, 16)}, r"past_key: got shape \[3, 200, 16\], expected \[slots, kv_heads, capacity"),
        ({"past_key": zeros(3, 0, 200, 16)}, r"past_key: got shape \[3, 0, 200, 16\]"),
        ({"past_value": zeros(3, 2, 199, 16)}, r"past_value: got shape \[3, 2, 199, 16\], expected the shape of"),
        ({"past_value": zeros(2, 2, 200, 16)}, r"past_value: got shape \[2, 2, 200, 16\], expected the shape of"),
        ({"cos": zeros(1, 6, 9)}, r"cos: got shape \[1, 6, 9\], expected \[batch, seq, rotary / 2\]"),
        ({"sin": zeros(1, 5, 8)}, r"sin: got shape \[1, 5, 8\]"),
        ({"sin": zeros(1, 6, 4)}, r"cos \[1, 6, 8\] and sin \[1, 6, 4\] differ"),
        ({"past_lengths": np.array([1, 198], np.int32)}, r"past_lengths\[1\]: got 198 and 3 new, .* capacity 200"),
        ({"slots": np.array([1, 1], np.int32)}, r"slots\[1\]: got 1 a second time"),
        ({"new_lengths": np.array([1, 4], np.int32)}, "new_lengths: got 5 tokens together, expected the 6 of the call"),
    ],
)
def test_wrong_shapes(change: Feeds, message: str) -> None:
    feeds = random_feeds(FORMS[0], [0, 0], [3, 3], "float32")
    with pytest.raises(RuntimeError, match=f"mxspec.QkvAttention: {message}"):
        run(fused("float32", FORMS[0]), feeds | change)


def test_a_cache_in_a_separate_buffer_is_refused() -> None:
    with pytest.raises(
        ERRORS.InvalidArgument, match=r"present_key: got a buffer of its own, .*; bind both to one OrtValue"
    ):
        fused("float32", FORMS[0]).run(None, random_feeds(FORMS[0], [0], [3], "float32"))


def test_one_table_without_the_other_is_an_error() -> None:
    node = helper.make_node("QkvAttention", [*INPUTS, "", "sin"], OUTPUTS, domain="mxspec", scale=0.3)
    session = open_session([node], "float32", [*INPUTS, "sin"])
    feeds = random_feeds(FORMS[0], [0], [3], "float32")
    del feeds["cos"]
    with pytest.raises(RuntimeError, match="cos and sin: got one of them"):
        run(session, feeds)


@pytest.mark.parametrize(
    ("form", "change", "message"),
    [
        (FORMS[4], {"query_norm_weight": zeros(17)}, r"query_norm_weight: got shape \[17\], expected \[16\] or \[64\]"),
        (FORMS[4], {"key_norm_weight": zeros(64)}, r"key_norm_weight: got shape \[64\], expected \[16\] or \[32\]"),
        (FORMS[4], {"key_norm_weight": zeros(1, 16)}, r"key_norm_weight: got shape \[1, 16\]"),
        (FORMS[8], {"key_norm_weight": zeros(80)}, r"key_norm_weight: got shape \[80\], expected \[16\], as a head"),
    ],
)
def test_wrong_norms(form: Form, change: Feeds, message: str) -> None:
    feeds = random_feeds(form, [0, 0], [3, 3], "float32")
    with pytest.raises(RuntimeError, match=f"mxspec.QkvAttention: {message}"):
        run(fused("float32", form), feeds | change)


def test_norms_need_an_epsilon() -> None:
    form = FORMS[4]
    node = helper.make_node("QkvAttention", form.inputs(), OUTPUTS, domain="mxspec", scale=0.3)
    session = open_session([node], "float32", form.inputs())
    with pytest.raises(RuntimeError, match="attribute norm_epsilon: missing"):
        run(session, random_feeds(form, [0], [3], "float32"))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"norm_epsilon": -1e-5}, "norm_epsilon: got -0.00001"),
        ({"norm_epsilon": float("inf")}, "norm_epsilon: got inf"),
        ({"interleaved": 2}, "interleaved: got 2, expected 0 or 1"),
        ({"pairs": -1}, "pairs: got -1, expected 0 or 1"),
    ],
)
def test_wrong_attributes(attributes: dict[str, float], message: str) -> None:
    node = helper.make_node("QkvAttention", INPUTS, OUTPUTS, domain="mxspec", scale=0.3, **attributes)
    with pytest.raises(ERRORS.RuntimeException, match=message):
        open_session([node], "float32", list(INPUTS))
