"""The pass that hands the fused product to the attention: what it takes in, and what it leaves as it is."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from mxspec.compile.passes.qkv import fuse_qkv
from mxspec.compile.passes.tidying import sweep

# Two heads of four; every value between the product and the attention has a name that a test can put a node after.
GRAPH = """
<ir_version: 10, opset_import: ["" : 23, "mxspec" : 2]>
attention (float[1,t,24] qkv, float[1,t,2] cos, float[1,t,2] sin, float[1,t,2] other, float[4] w, float[8] all,
           float[r,2,c,4] past_key, float[r,2,c,4] past_value, int32[n] slots, int32[n] past, int32[n] new,
           float[2] slopes)
        => (float[1,t,8] output, float[r,2,c,4] present_key, float[r,2,c,4] present_value)
<int64[3] sizes = {8, 8, 8}, int64[4] heads = {0, 0, 2, 4}, int64[3] flat = {0, 0, 8}, float half = {0.5},
 float[1,t,8] q, float[1,t,8] k, float[1,t,8] v, float[1,t,8] q1, float[1,t,8] k1, float[1,t,8] v1,
 float[1,t,2,4] q2, float[1,t,2,4] k2, float[1,t,2,4] v2, float[1,t,2,4] q3, float[1,t,2,4] k3, float[1,t,2,4] v3,
 float[1,t,2,4] q4, float[1,t,2,4] k4, float[1,t,2,4] v4, float[1,t,2,4] attended>
{
    q, k, v = Split <axis = -1> (qkv, sizes)
    q1 = Identity (q)
    k1 = Identity (k)
    v1 = Identity (v)
    q2 = Reshape (q1, heads)
    k2 = Reshape (k1, heads)
    v2 = Reshape (v1, heads)
    q3 = Identity (q2)
    k3 = Identity (k2)
    v3 = Identity (v2)
    q4 = Identity (q3)
    k4 = Identity (k3)
    v4 = Identity (v3)
    attended, present_key, present_value =
        mxspec.Attention <scale = 0.5> (q4, k4, v4, past_key, past_value, slots, past, new)
    output = Reshape (attended, flat)
}
"""


def fused(*changes: str, graph: str = GRAPH) -> ir.Node | None:
    """The QkvAttention that the pass makes of the graph, where each change is a line in the place of its output's."""
    lines = graph.splitlines()
    for change in changes:
        output = change.split("=")[0].strip()
        at = next(i for i, line in enumerate(lines) if line.strip().startswith(f"{output} ="))
        lines[at] = change
    model = ir.from_onnx_text("\n".join(lines))
    for node in [node for node in model.graph if node.op_type == "Identity"]:
        node.outputs[0].replace_all_uses_with(node.inputs[0])
        model.graph.remove(node, safe=True)
    fuse_qkv(model)
    sweep(model)
    found = [node for node in model.graph if node.op_type == "QkvAttention"]
    assert len(found) <= 1
    assert len(found) + sum(node.op_type == "Attention" for node in model.graph) == 1
    if found:
        assert {node.op_type for node in model.graph} == {"QkvAttention"}
    return found[0] if found else None


ROTATED = tuple(f"{x}4 = mxspec.RotaryEmbedding ({x}3, cos, sin)" for x in "qk")
NORMED = tuple(f"{x}3 = RMSNormalization <axis = -1, epsilon = 0.25> ({x}2, w)" for x in "qk")
ALL_NORMED = tuple(f"{x}1 = RMSNormalization <axis = -1, epsilon = 0.25> ({x}, all)" for x in "qk")
SCALED = "q1 = Mul (half, q)"
BEFORE = ["qkv", "past_key", "past_value", "slots", "past", "new"]


@pytest.mark.parametrize(
    ("changes", "inputs", "attributes"),
    [
        ((), [], {"scale": 0.5}),
        (ROTATED, ["cos", "sin"], {"scale": 0.5}),
        ((*ROTATED, *NORMED), ["cos", "sin", "w", "w"], {"scale": 0.5, "norm_epsilon": 0.25}),
        (ALL_NORMED, [None, None, "all", "all"], {"scale": 0.5, "norm_epsilon": 0.25}),
        (NORMED[1:], [None, None, None, "w"], {"scale": 0.5, "norm_epsilon": 0.25}),
        ((*ROTATED, SCALED), ["cos", "sin"], {"scale": 0.25}),
    ],
)
def test_goes_into_the_operator(changes, inputs, attributes) -> None:
    node = fused(*changes)
    assert node is not None
    names = [None if value is None else value.name for value in node.inputs]
    assert names == [*BEFORE, *inputs]
    assert {name: attribute.value for name, attribute in node.attributes.items()} == attributes


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param((SCALED, *NORMED), id="a scale that the norm undoes"),
        pytest.param(("k1 = Mul (half, k)",), id="keys scaled"),
        pytest.param((NORMED[0], NORMED[1].replace("0.25", "0.5")), id="two epsilons"),
        pytest.param((*NORMED, *ALL_NORMED), id="two norms"),
        pytest.param(("v3 = RMSNormalization <axis = -1> (v2, w)",), id="values normed"),
        pytest.param((ROTATED[0],), id="keys not rotated"),
        pytest.param((ROTATED[0], ROTATED[1].replace("cos", "other")), id="other tables"),
        pytest.param((*ROTATED, "v4 = mxspec.RotaryEmbedding (v3, cos, sin)"), id="values rotated"),
        pytest.param(("q2 = Reshape (k1, heads)", "k2 = Reshape (q1, heads)"), id="another order"),
        pytest.param(("q2 = Reshape (k1, heads)",), id="keys twice"),
        pytest.param(("q1 = Relu (q)",), id="something else"),
        pytest.param(("q3 = RMSNormalization <axis = 2> (q2, w)",), id="a norm of all heads in a view of heads"),
    ],
)
def test_graphs_without_a_match_stay_unchanged(changes) -> None:
    assert fused(*changes) is None


def test_slopes_and_sinks_go_along() -> None:
    node = fused(graph=GRAPH.replace("past, new)\n    output", "past, new, slopes, slopes)\n    output"))
    assert node is not None
    names = [None if value is None else value.name for value in node.inputs]
    assert names == [*BEFORE, None, None, None, None, "slopes", "slopes"]


def test_rotation_of_pairs() -> None:
    pairs = tuple(line.replace("Embedding", "Embedding <pairs = 1>") for line in ROTATED)
    node = fused(*pairs)
    assert node is not None
    assert node.attributes["pairs"].as_int() == 1
    assert fused(pairs[0], ROTATED[1]) is None


IN_TURNS = (
    GRAPH.replace(
        "float[1,t,8] q, float[1,t,8] k, float[1,t,8] v,", "float[1,t,2,4] q, float[1,t,2,4] k, float[1,t,2,4] v,"
    )
    .replace(
        "<int64[3] sizes = {8, 8, 8}",
        "<float[1,t,2,12] pieces, int64[4] turns = {0, 0, 2, 12}, int64[3] sizes = {4, 4, 4}",
    )
    .replace(
        "    q, k, v = Split <axis = -1> (qkv",
        "    pieces = Reshape (qkv, turns)\n    q, k, v = Split <axis = -1> (pieces",
    )
)
VIEWS = tuple(f"{x}2 = Identity ({x})" for x in "qkv")


def test_heads_in_turns() -> None:
    """Each head's query, key and value side by side, as GPT-NeoX has them."""
    node = fused(*VIEWS, *ROTATED, *NORMED, graph=IN_TURNS)
    assert node is not None
    assert [value.name for value in node.inputs if value is not None] == [*BEFORE, "cos", "sin", "w", "w"]
    assert node.attributes["interleaved"].as_int() == 1
    assert fused("q2 = Identity (k)", "k2 = Identity (q)", VIEWS[2], graph=IN_TURNS) is None


def test_a_product_that_holds_more_stays_cut() -> None:
    wider = GRAPH.replace("float[1,t,24]", "float[1,t,32]").replace("q, k, v = Split", "q, k, v, rest = Split")
    assert fused(graph=wider.replace("int64[3] sizes = {8, 8, 8}", "int64[4] sizes = {8, 8, 8, 8}")) is None
