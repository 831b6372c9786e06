"""Standard models on ONNX's reference evaluator and on ONNX Runtime, beside our own runtime and transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from transformers import PreTrainedModel

from mxspec.compile.interchange.standard import check
from mxspec.formats.manifest import ModelEntry
from mxspec.formats.tiles import unpack_values
from mxspec.formats.weight_format import WEIGHT_FORMATS
from mxspec.runtime.session import Part, Session

Logits = npt.NDArray[np.float32]
Run = Callable[[dict[str, Any]], dict[str, Any]]
FORMATS = {"mxfp6_e3m2": 28, "mxfp6_e2m3": 28, "mxfp4_e2m1": 24, "mxint8": 24, "fp16_tiles": 21}
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
    dtype = np.dtype(entry.cache_dtype)
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


def with_weights_of(folder: Path, entry: ModelEntry, model: PreTrainedModel) -> PreTrainedModel:
    """The transformers model with the matrices as they were rounded."""
    twin = copy.deepcopy(model)
    state, data = twin.state_dict(), np.fromfile(folder / entry.weights, np.uint8)
    by_tensor = {name: name for name in state}
    for tensor in entry.tensors:
        if tensor.format not in WEIGHT_FORMATS:
            continue
        packed = data[tensor.offset : tensor.offset + tensor.bytes]
        n, k = tensor.shape
        values, row = unpack_values(packed.reshape(-(-n // 16), -1), tensor.format, n, k), 0
        for source in tensor.sources:
            weight = state[by_tensor[source]]
            transposed = tuple(weight.shape) != (weight.shape[0], k) or "c_" in source
            rows = weight.shape[1] if transposed else weight.shape[0]
            part = torch.tensor(values[row : row + rows])
            weight.copy_(part.T if transposed else part)
            row += rows
    return twin


def expected(model: PreTrainedModel) -> Logits:
    with torch.no_grad():
        logits: Logits = model(input_ids=torch.tensor(TEXT)).logits.numpy()
    return logits


def error(got: Logits, wanted: Logits) -> float:
    assert got.shape == wanted.shape
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def test_every_architecture_is_what_transformers_computes(tiny_name, standard_model, written_model, tiny_checkpoint):
    path = standard_model(tiny_name, "fp16_tiles")
    check(path)
    _, entry = written_model(tiny_name, "fp16_tiles", "float32")
    assert error(read(reference(path), entry), expected(tiny_checkpoint(tiny_name)[1])) < 1e-5
    model = onnx.load(path, load_external_data=False)
    assert {node.domain for node in model.graph.node} == {""}
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 21)]
