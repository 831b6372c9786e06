"""The check at compile time: passes for a model whose rows keep to themselves, and catches those that do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mxspec.compile.check.specialize import check_specializations
from mxspec.formats.errors import BundleError, CheckFailed
from mxspec.formats.manifest import ModelEntry

VOCABULARY = 8

# What the logits of a token are made of: the token alone, or also its batch, or a cache slot that nothing wrote.
GOOD, BATCH, NEIGHBOURS, SLOT, STALE, INFINITE = "good", "batch", "neighbours", "slot", "stale", "infinite"


def write_model(folder: Path, fault: str, vocab_size: int = VOCABULARY) -> ModelEntry:
    """A graph by the contract whose logits are a table looked up by token id."""
    table = np.random.default_rng(0).standard_normal((VOCABULARY, VOCABULARY)).astype(np.float32)
    if fault == INFINITE:
        table[0] = np.inf
    added = {
        BATCH: [helper.make_node("ReduceMean", ["rows", "axis"], ["added"])],
        NEIGHBOURS: [
            helper.make_node("Shape", ["slots"], ["sequences"]),
            helper.make_node("Cast", ["sequences"], ["added"], to=TensorProto.FLOAT),
        ],
        SLOT: [
            helper.make_node("Gather", ["slots", "first"], ["slot"]),
            helper.make_node("Cast", ["slot"], ["added"], to=TensorProto.FLOAT),
        ],
        STALE: [helper.make_node("ReduceMean", ["past_key.0"], ["added"], keepdims=0)],
    }.get(fault, [helper.make_node("Identity", ["zero"], ["added"])])
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        *added,
        helper.make_node("Add", ["rows", "added"], ["all"]),
        helper.make_node("Gather", ["all", "logits_to_keep"], ["kept"], axis=1),
        helper.make_node("Squeeze", ["kept", "first"], ["logits"]),
        helper.make_node("Identity", ["past_key.0"], ["present_key.0"]),
        helper.make_node("Identity", ["past_value.0"], ["present_value.0"]),
    ]
    cache = ["slots", 1, "capacity", 4]
    inputs = [
        *(
            helper.make_tensor_value_info(name, TensorProto.INT64, [1, "tokens"])
            for name in ("input_ids", "position_ids")
        ),
        *(
            helper.make_tensor_value_info(name, TensorProto.INT32, ["sequences"])
            for name in ("slots", "past_lengths", "new_lengths")
        ),
        helper.make_tensor_value_info("logits_to_keep", TensorProto.INT64, ["rows"]),
        *(helper.make_tensor_value_info(f"past_{kind}.0", TensorProto.FLOAT, cache) for kind in ("key", "value")),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", VOCABULARY]),
        *(helper.make_tensor_value_info(f"present_{kind}.0", TensorProto.FLOAT, cache) for kind in ("key", "value")),
    ]
    constants = [
        numpy_helper.from_array(table, "table"),
        numpy_helper.from_array(np.zeros(1, np.float32), "zero"),
        numpy_helper.from_array(np.array([1]), "axis"),
        numpy_helper.from_array(np.array([0]), "first"),
    ]
    graph = helper.make_graph(nodes, "model", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
    return ModelEntry(
        graph="model.onnx", weights="x", architecture="x", format="fp16", layers=1, kv_heads=1, head_size=4,
        caches="float32", vocab_size=vocab_size, context_length=64, specializations=(1,), tensors=(),
    )  # fmt: skip


def test_rows_that_keep_to_themselves(tmp_path: Path) -> None:
    check_specializations(tmp_path, write_model(tmp_path, GOOD), VOCABULARY, (1, 5, 16))


def test_a_context_shorter_than_the_longest_call(tmp_path: Path) -> None:
    entry = write_model(tmp_path, GOOD).model_copy(update={"context_length": 4})
    check_specializations(tmp_path, entry, VOCABULARY, (1, 4))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (BATCH, "row 0 of a call of 5 tokens is not bit for bit what calls of 1 give"),
        (NEIGHBOURS, "row 0 of 1 tokens in slot 2, in a call of 3 texts, is not bit for bit what they give alone"),
        (SLOT, "row 0 of 1 tokens in slot 2, in a call of 3 texts, is not bit for bit what they give alone"),
        (STALE, "a call of 3 tokens gave logits with NaN or infinity"),
        (INFINITE, "NaN or infinity"),
    ],
)
def test_faults_are_caught(tmp_path: Path, fault: str, says: str) -> None:
    entry = write_model(tmp_path, fault)
    with pytest.raises(CheckFailed, match=says):
        check_specializations(tmp_path, entry, VOCABULARY, (1, 5, 16))


def test_a_large_model_runs_single_steps_only(tmp_path: Path) -> None:
    """Its twin is tried at all lengths and in batches."""
    check_specializations(tmp_path, write_model(tmp_path, NEIGHBOURS), VOCABULARY, (1,))


def test_logits_of_another_size(tmp_path: Path) -> None:
    entry = write_model(tmp_path, GOOD, vocab_size=VOCABULARY + 1)
    with pytest.raises(BundleError, match=r"vocab_size: got 9, the graph's logits are \['rows', 8\]"):
        check_specializations(tmp_path, entry, VOCABULARY, (1,))
