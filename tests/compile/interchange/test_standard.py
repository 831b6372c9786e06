"""Standard models on ONNX's reference evaluator and on ONNX Runtime, beside our own runtime and transformers."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from transformers import PreTrainedModel

from mxspec.compile.interchange.contract import fix_shapes
from mxspec.compile.interchange.lowering import lower
from mxspec.compile.interchange.lowering.nodes import Call
from mxspec.compile.interchange.standard import check
from mxspec.compile.interchange.weights import ELEMENT_TYPES, opset_of
from mxspec.formats.errors import CheckFailed, MxspecError
from mxspec.formats.manifest import ModelEntry, TensorEntry
from mxspec.formats.tiles import unpack_values
from mxspec.formats.weight_format import ELEMENTS, WEIGHT_FORMATS
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session

Logits = npt.NDArray[np.float32]
ACTIVATIONS = 5e-4  # what int16 rows cost, of the largest logit
Run = Callable[[dict[str, Any]], dict[str, Any]]
TEXT = np.random.default_rng(0).integers(3, 118, (2, 21))


def reference(path: Path) -> Run:
    evaluator = ReferenceEvaluator(onnx.load(path))
    return lambda inputs: dict(zip(evaluator.output_names, evaluator.run(None, inputs), strict=True))


def onnx_runtime(path: Path) -> Run:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def step(run: Run, entry: ModelEntry, tokens: Any, past: dict[str, Any] | None = None, hidden: int = 0) -> Any:
    """Logits and caches after more tokens of a batch, the first `hidden` of all of which are padding."""
    batch = len(tokens)
    dtype = np.dtype(entry.caches)
    names = [f"{layer}.{what}" for layer in range(entry.layers) for what in ("key", "value")]
    if past is None:
        past = {name: np.zeros((batch, entry.kv_heads, 0, entry.head_size), dtype) for name in names}
    length = past["0.key"].shape[2]
    mask = np.ones((batch, length + tokens.shape[1]), np.int64)
    mask[:, :hidden] = 0
    positions = np.tile(np.arange(length, length + tokens.shape[1]), (batch, 1)) - hidden
    found = run(
        {"input_ids": tokens, "attention_mask": mask, "position_ids": np.maximum(positions, 0)}
        | {f"past_key_values.{name}": value for name, value in past.items()}
    )
    return found["logits"], {name: found[f"present.{name}"] for name in names}


def read(run: Run, entry: ModelEntry) -> Logits:
    """Logits after every token: a prompt, several tokens more, a single step; float32[batch, tokens, vocab]."""
    logits, past = [], None
    for begin, end in ((0, 15), (15, 20), (20, 21)):
        part, past = step(run, entry, TEXT[:, begin:end], past)
        logits.append(part)
    return np.concatenate(logits, axis=1)


def ours(folder: Path, entry: ModelEntry) -> Logits:
    session = Session(folder, entry, entry.vocab_size, slots=2)
    size = TEXT.shape[1]
    logits = session.run([Part(slot, 0, text.tolist(), size) for slot, text in enumerate(TEXT)])
    return logits.copy().reshape(2, size, -1)


def expected(model: PreTrainedModel) -> Logits:
    with torch.no_grad():
        logits: Logits = model(input_ids=torch.tensor(TEXT)).logits.numpy()
    return logits


def error(got: Logits, wanted: Logits) -> float:
    assert got.shape == wanted.shape
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def rounded(folder: Path, entry: ModelEntry, model: PreTrainedModel) -> PreTrainedModel:
    """The transformers model with the matrices that the bundle's tensors stand for."""
    twin, data = copy.deepcopy(model), np.fromfile(folder / entry.weights, np.uint8)
    state = twin.state_dict()
    for tensor in entry.tensors:
        if tensor.format in WEIGHT_FORMATS:
            parts = np.split(values_of(tensor, data), np.cumsum([len(state[name]) for name in tensor.sources])[:-1])
            for name, part in zip(tensor.sources, parts, strict=True):
                state[name].copy_(torch.tensor(part))
    return twin


def values_of(tensor: TensorEntry, data: npt.NDArray[np.uint8]) -> Logits:
    n, k = tensor.shape
    packed = data[tensor.offset : tensor.offset + tensor.bytes].reshape(-(-n // 16), -1)
    return unpack_values(packed, tensor.format, n, k)


NO_STANDARD_FORM = {
    "bloom": "the slopes of ALiBi, with sinks or with biases by distance has no form",
    "gpt_oss": "the slopes of ALiBi, with sinks or with biases by distance has no form",
    "granite_swa": "the slopes of ALiBi, with sinks or with biases by distance has no form",
    "codegen": "a Reshape that needs a batch of one",
}


def test_every_architecture_equals_transformers(tiny_name, standard_model, written_model, tiny_checkpoint) -> None:
    if tiny_name in NO_STANDARD_FORM:
        with pytest.raises(MxspecError, match=NO_STANDARD_FORM[tiny_name]):
            standard_model(tiny_name, "fp16_tiles")
        return
    path = standard_model(tiny_name, "fp16_tiles")
    check(path)
    _, entry = written_model(tiny_name, "fp16_tiles", "float32")
    assert error(read(reference(path), entry), expected(tiny_checkpoint(tiny_name)[1])) < 1e-5
    model = onnx.load(path, load_external_data=False)
    assert {node.domain for node in model.graph.node} == {""}
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 21)]


def test_every_format_keeps_the_bundles_values(standard_model, written_model, tiny_checkpoint) -> None:
    """Logits: those of the rounded weights but for float32's last bits, our runtime's but for int16 activations."""
    path, (folder, entry) = standard_model("llama-ragged", "every"), written_model("llama-ragged", "every")
    check(path)
    got = read(reference(path), entry)
    model = tiny_checkpoint("llama-ragged")[1]
    assert error(got, expected(rounded(folder, entry, model))) < 1e-5
    assert 0 < error(got, ours(folder, entry)) < ACTIVATIONS
    assert error(got, expected(model)) > 1e-2  # the weights are others, so the checks above looked at them


@pytest.mark.parametrize("scales", ["e8m0", "float32"])
def test_dequantised_matrices_are_exact(scales, standard_model, written_model) -> None:
    """What onnx reads from the initializers, against what formats/ says that the bundle's tensors mean."""
    path, (folder, entry) = (
        standard_model("llama-ragged", "every", "float32", scales),
        written_model("llama-ragged", "every"),
    )
    initializers = {value.name: value for value in onnx.load(path).graph.initializer}
    data, types = np.fromfile(folder / entry.weights, np.uint8), set()
    for tensor in entry.tensors:
        if tensor.format in WEIGHT_FORMATS:
            values = onnx.numpy_helper.to_array(initializers[tensor.name])
            types.add(values.dtype.name)
            values = values.astype(np.float32)
            if tensor.format != "fp16_tiles":
                steps = onnx.numpy_helper.to_array(initializers[f"{tensor.name}.scales"])
                assert (steps.dtype == np.float32) == (scales == "float32")
                values = values * np.repeat(steps.astype(np.float32), 32, axis=1)[:, : tensor.shape[1]]
            assert np.array_equal(values, values_of(tensor, data)), tensor.name
    assert types == {"float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "int8", "float16"}


def test_half_precision_caches(standard_model, written_model) -> None:
    path, (folder, entry) = (
        standard_model("qwen3", "mxfp6_e3m2", "float16"),
        written_model("qwen3", "mxfp6_e3m2", "float16"),
    )
    check(path)
    assert 0 < error(read(reference(path), entry), ours(folder, entry)) < 1e-3


def test_mxint8_with_float32_scales_runs_on_onnx_runtime(standard_model, written_model) -> None:
    path, (folder, entry) = (
        standard_model("llama-ragged", "mxint8", "float32", "float32"),
        written_model("llama-ragged", "mxint8"),
    )
    check(path)
    assert [(opset.domain, opset.version) for opset in onnx.load(path).opset_import] == [("", 21)]
    got = read(onnx_runtime(path), entry)
    assert error(got, read(reference(path), entry)) < 1e-5
    assert 0 < error(got, ours(folder, entry)) < ACTIVATIONS


@pytest.mark.parametrize("name", ["gemma2", "phi"])
def test_padding_on_the_left_changes_nothing(name, standard_model, written_model) -> None:
    """Text after padding, in a batch: the logits of the text alone; gemma2 has a window."""
    run = onnx_runtime(standard_model(name, "fp16_tiles"))
    _, entry = written_model(name, "fp16_tiles", "float32")
    alone, _ = step(run, entry, TEXT)
    padded = np.concatenate([np.full((2, 5), 3), TEXT], axis=1)
    behind, _ = step(run, entry, padded, hidden=5)
    assert np.isfinite(behind).all()
    assert error(behind[:, 5:], alone) < 1e-5


def test_a_call_of_fixed_shapes_gives_the_same_logits(standard_model, written_model, tmp_path) -> None:
    """The caches are full: padding, whatever lies in it, then what was read."""
    path, (_, entry) = standard_model("gemma2", "fp16_tiles"), written_model("gemma2", "fp16_tiles", "float32")
    shutil.copyfile(path.with_suffix(".safetensors"), tmp_path / "target.safetensors")
    ir.save(fix_shapes(ir.load(path), 2, 4, 96), tmp_path / "target.score.onnx")
    check(tmp_path / "target.score.onnx")
    run = onnx_runtime(path)
    _, past = step(run, entry, TEXT[:, :17])
    expected, _ = step(run, entry, TEXT[:, 17:], past)
    full = {
        name: np.concatenate([np.ones_like(cache[:, :, :1]).repeat(75, 2), cache], 2) for name, cache in past.items()
    }
    got, _ = step(onnx_runtime(tmp_path / "target.score.onnx"), entry, TEXT[:, 17:], full, hidden=75)
    assert error(got, expected) < 1e-5


def test_the_first_opset_that_has_the_types() -> None:
    assert opset_of({"fp16_tiles"}, "e8m0") == opset_of({"mxint8"}, "float32") == 21
    assert opset_of({"mxint8", "fp16_tiles"}, "e8m0") == opset_of({"mxfp4_e2m1"}, "e8m0") == 24
    assert opset_of({"mxfp4_e2m1"}, "float32") == 23
    assert opset_of({"mxfp4_e2m1", "mxfp6_e3m2"}, "e8m0") == opset_of({"mxfp6_e2m3"}, "float32") == 28
    assert ELEMENT_TYPES.keys() == ELEMENTS.keys()


@pytest.mark.parametrize(
    ("operator", "inputs", "says"),
    [
        ("Foo", 1, "operator mxspec::Foo has no form"),
        ("CrossAttention", 6, "operator mxspec::CrossAttention has no form"),
        *(("Attention", inputs, "by distance has no form") for inputs in (9, 10, 11)),
    ],
)
def test_operators_without_a_standard_form_are_refused(operator, inputs, says) -> None:
    values = [ir.Value(name=f"x{i}") for i in range(inputs)]
    node = ir.Node("mxspec", operator, values)
    model = ir.Model(ir.Graph(values, node.outputs, nodes=[node], opset_imports={"mxspec": 2}), ir_version=10)
    with pytest.raises(MxspecError, match=says):
        lower(model, Call({}, values[0], {}, 1, 4, grouped=False, cache_dtype=ir.DataType.FLOAT))


def test_a_graph_with_wrong_types_does_not_pass(standard_model, tmp_path) -> None:
    path = standard_model("llama-ragged", "every")
    model = onnx.load(path, load_external_data=False)
    cast = next(node for node in model.graph.node if node.op_type == "Cast")
    cast.attribute[0].i = onnx.TensorProto.INT64
    shutil.copyfile(path.with_suffix(".safetensors"), tmp_path / "target.safetensors")
    onnx.save(model, tmp_path / "target.onnx")
    with pytest.raises(CheckFailed, match=r"target\.onnx: not what ONNX expects"):
        check(tmp_path / "target.onnx")
