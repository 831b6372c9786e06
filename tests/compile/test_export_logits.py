"""Exported graphs on ONNX Runtime against transformers: prefill, single steps, ragged scoring, rollback, and bits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from transformers import PreTrainedModel

from mxspec.compile.export import ExportedGraph, WeightSpec
from mxspec.formats.tiles import pack_fp16, quantize_pack, unpack_values
from mxspec.runtime.ops import library_path

Logits = npt.NDArray[np.float32]
Rows = list[list[int]]
Checkpoints = Callable[[str], tuple[Path, PreTrainedModel]]
CONTEXT = 96
ARCHITECTURES = [
    "llama", "llama-tied", "llama-rope3", "llama-ragged", "gpt2", "gpt2-untied", "mistral", "qwen2", "qwen3", "gemma2",
    "gemma3", "phi", "gpt_neox", "phi3", "opt", "gemma", "olmo2", "granite", "smollm3", "starcoder2",
]  # fmt: skip


class Graph:
    """An exported graph with its weights filled in, and a batch of caches that start full of NaN."""

    def __init__(self, exported: ExportedGraph, values: dict[str, npt.NDArray[np.generic]], threads: int) -> None:
        model = exported.model.clone()
        for name, value in values.items():
            model.graph.initializers[name].const_value = ir.tensor(value, name=name)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.register_custom_ops_library(str(library_path()))
        graph = ir.serde.serialize_model(model).SerializeToString()
        self.session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self.exported = exported
        self.caches: dict[str, ort.OrtValue] = {}

    def start(self, batch: int) -> None:
        shape = (batch, self.exported.kv_heads, CONTEXT, self.exported.head_size)
        for layer in range(self.exported.layers):
            for what in ("key", "value"):
                empty = np.full(shape, np.nan, self.exported.cache_dtype)
                self.caches[f"{what}.{layer}"] = ort.OrtValue.ortvalue_from_numpy(empty)

    def __call__(self, tokens: Rows, past: Sequence[int]) -> list[Logits]:
        """Logits of each row's new tokens, float32[new, vocab]; rows padded on the right, caches written in place."""
        new = [len(row) for row in tokens]
        width = max(new)
        ids = np.array([row + [0] * (width - len(row)) for row in tokens], np.int64)
        columns = np.arange(width)[None].repeat(len(tokens), 0)
        binding = self.session.io_binding()
        feeds = {
            "input_ids": ids,
            "position_ids": np.array(past, np.int64)[:, None] + np.minimum(columns, np.array(new)[:, None] - 1),
            "past_lengths": np.array(past, np.int32),
            "new_lengths": np.array(new, np.int32),
            "logits_to_keep": columns,
        }
        values = {name: ort.OrtValue.ortvalue_from_numpy(feed) for name, feed in feeds.items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in self.caches.items():
            binding.bind_ortvalue_input(f"past_{name}", value)
            binding.bind_ortvalue_output(f"present_{name}", value)
        binding.bind_output("logits", "cpu")
        self.session.run_with_iobinding(binding)
        logits = binding.get_outputs()[-1].numpy()
        return [logits[row, : new[row]] for row in range(len(tokens))]


def fill(spec: WeightSpec, state: dict[str, torch.Tensor]) -> npt.NDArray[np.generic]:
    """The bytes that belong into the graph, packed from a model's parameters."""
    if spec.value is not None:
        return spec.value
    sources = [state[name].numpy() for name in spec.sources]
    stacked = np.concatenate([source.T if spec.transpose else source for source in sources])
    assert stacked.shape == spec.shape, spec
    if spec.kind != "matmul":
        return stacked.astype(spec.stored_dtype)
    stacked = np.ascontiguousarray(stacked)
    if spec.format == "fp16":
        return pack_fp16(stacked).data
    return quantize_pack(stacked, spec.format.removeprefix("mxfp6_")).data


@pytest.fixture
def open_graph(tiny_checkpoint: Checkpoints, tiny_export: Callable[..., ExportedGraph]) -> Callable[..., Graph]:
    def open_it(name: str, weight_format: str = "fp16", cache_dtype: str = "float32", threads: int = 1) -> Graph:
        exported = tiny_export(name, weight_format, cache_dtype)
        state = tiny_checkpoint(name)[1].state_dict()
        return Graph(exported, {spec.name: fill(spec, state) for spec in exported.weights}, threads)

    return open_it


def reference(model: PreTrainedModel, text: list[int]) -> Logits:
    with torch.no_grad():
        logits: Logits = model(input_ids=torch.tensor([text])).logits[0].numpy()
    return logits


def texts(seed: int, lengths: Sequence[int]) -> Rows:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 118, length).tolist() for length in lengths]


def relative_error(got: Logits, expected: Logits) -> float:
    assert got.shape == expected.shape
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def worst_error(graph: Graph, model: PreTrainedModel) -> float:
    """Prefill in ragged chunks, single steps, ragged scoring, rollback and other tokens: the worst error of all."""
    first, other = texts(0, (40, 33)), texts(1, (40, 33))
    expected = [reference(model, text) for text in first]
    graph.start(batch=2)
    past, errors = [0, 0], []
    for new in ((20, 13), (5, 11), (1, 1), (1, 1), (5, 3), (2, 4)):
        tokens = [text[p : p + n] for text, p, n in zip(first, past, new, strict=True)]
        logits = graph(tokens, past)
        for row, (p, n) in enumerate(zip(past, new, strict=True)):
            errors.append(relative_error(logits[row], expected[row][p : p + n]))
        past = [p + n for p, n in zip(past, new, strict=True)]
    kept = [past[0] - 4, past[1] - 1]  # the rollback: the next call is told of fewer cached tokens, nothing else
    changed = [text[:k] + others[k : k + 5] for text, others, k in zip(first, other, kept, strict=True)]
    logits = graph([text[k:] for text, k in zip(changed, kept, strict=True)], kept)
    for row, (text, k) in enumerate(zip(changed, kept, strict=True)):
        errors.append(relative_error(logits[row], reference(model, text)[k:]))
    return max(errors)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_equal_transformers(name, open_graph, tiny_checkpoint) -> None:
    _, model = tiny_checkpoint(name)
    graph = open_graph(name)
    assert worst_error(graph, model) < 1e-5
    operators = {node.op_type for node in graph.exported.model.graph}
    assert "Transpose" not in operators
    assert ("Attention" in operators) == (name == "llama-ragged")  # whose projections cannot be one product


@pytest.mark.parametrize("name", ["llama-tied", "gpt2"])
def test_half_precision_cache_costs_little(name, open_graph, tiny_checkpoint) -> None:
    _, model = tiny_checkpoint(name)
    error = worst_error(open_graph(name, cache_dtype="float16"), model)
    assert 1e-5 < error < 1e-3  # below, the cache would not have been float16


def test_packed_weights_mean_what_formats_says(open_graph, tiny_checkpoint) -> None:
    """The graph with MXFP6 weights equals transformers with the dequantised weights, up to its int16 activations."""
    _, model = tiny_checkpoint("llama")
    graph = open_graph("llama", "mxfp6_e3m2")
    twin = copy.deepcopy(model)
    state = twin.state_dict()
    for spec in (spec for spec in graph.exported.weights if spec.kind == "matmul"):
        values, row = unpack_values(fill(spec, model.state_dict()), spec.format, *spec.shape), 0
        for source in spec.sources:
            state[source].copy_(torch.tensor(values[row : row + len(state[source])]))
            row += len(state[source])
    assert worst_error(graph, twin) < 1e-3
    assert worst_error(graph, model) > 1e-2  # the packed weights are others, so the check above looked at them


def single_steps(graph: Graph, text: list[int], start: int) -> Logits:
    return np.concatenate([graph([[token]], [start + i])[0] for i, token in enumerate(text)])


SETTINGS = [
    ("llama", "mxfp6_e3m2", "float32"),
    ("llama-ragged", "mxfp6_e3m2", "float16"),
    ("llama-tied", "fp16", "float16"),
    ("gpt2", "fp16", "float16"),
    ("gemma2", "fp16", "float32"),
    ("gpt_neox", "fp16", "float32"),
    ("qwen3", "mxfp6_e3m2", "float16"),
    ("olmo2", "fp16", "float32"),
    ("phi", "fp16", "float32"),
]


@pytest.mark.parametrize(("name", "weight_format", "cache_dtype"), SETTINGS)
def test_rows_do_not_depend_on_company(name, weight_format, cache_dtype, open_graph) -> None:
    """K+1 scored rows, rows of a ragged batch, other chunks, two threads: all have the bits of single steps."""
    graph = open_graph(name, weight_format, cache_dtype)
    text, other = texts(3, (41, 29))
    graph.start(batch=1)
    alone = single_steps(graph, text, 0)
    for k in range(1, 9):
        assert np.array_equal(graph([text[20 : 21 + k]], [20])[0], alone[20 : 21 + k]), k
    for chunk in (41, 16, 7):
        graph.start(batch=1)
        parts = [graph([text[p : p + chunk]], [p])[0] for p in range(0, len(text), chunk)]
        assert np.array_equal(np.concatenate(parts), alone), chunk
    for which in (graph, open_graph(name, weight_format, cache_dtype, threads=2)):
        which.start(batch=3)
        rows = which([other[:9], text, other[:1]], [0, 0, 0])
        assert np.array_equal(rows[1], alone)
        assert np.array_equal(rows[2], rows[0][:1])
