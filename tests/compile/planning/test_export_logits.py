"""Exported graphs on the runtime's session against transformers: prefill, single steps, scoring, rollback, and bits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import PreTrainedModel

from mxspec.compile.check.readings import forget
from mxspec.compile.graph.exported_graph import ExportedGraph
from mxspec.formats.manifest import ModelEntry
from mxspec.formats.tiles import unpack_values
from mxspec.runtime import ops
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session
from tests.compile.conftest import fill_weight

Logits = npt.NDArray[np.float32]
Checkpoints = Callable[[str], tuple[Path, PreTrainedModel]]
Exports = Callable[[str, str, str], ExportedGraph]
Written = Callable[..., tuple[Path, ModelEntry]]
Sessions = Callable[..., Session]
SLOTS = (4, 1)  # of the two texts, among the slots of a session


@pytest.fixture
def open_session(written_graph: Written) -> Sessions:
    def open_it(name: str, weight_format: str = "fp16_tiles", caches: str = "float32") -> Session:
        folder, entry = written_graph(name, weight_format, caches)
        session = Session(folder, entry, entry.vocab_size, slots=5)
        forget(session)
        return session

    return open_it


def run(session: Session, *parts: tuple[int, int, list[int]]) -> list[Logits]:
    """Logits of every token of one call, float32[tokens, vocab] for each part (slot, past, tokens)."""
    logits = session.run([Part(slot, past, tokens, len(tokens)) for slot, past, tokens in parts]).copy()
    return np.split(logits, np.cumsum([len(tokens) for _, _, tokens in parts])[:-1])


def reference(model: PreTrainedModel, text: list[int]) -> Logits:
    with torch.no_grad():
        logits: Logits = model(input_ids=torch.tensor([text])).logits[0].numpy()
    return logits


def texts(seed: int, lengths: Sequence[int]) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 118, length).tolist() for length in lengths]


def relative_error(got: Logits, expected: Logits) -> float:
    assert got.shape == expected.shape
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def worst_error(session: Session, model: PreTrainedModel) -> float:
    """Prompts in chunks, single steps, scoring, rollback and other tokens, two texts a call: the worst error of all."""
    first, other = texts(0, (40, 33)), texts(1, (40, 33))
    expected = [reference(model, text) for text in first]
    forget(session)
    past, errors = [0, 0], []
    for new in ((20, 13), (5, 11), (1, 1), (1, 1), (5, 3), (2, 4)):
        parts = [(slot, p, text[p : p + n]) for slot, text, p, n in zip(SLOTS, first, past, new, strict=True)]
        for logits, text, p, n in zip(run(session, *parts), expected, past, new, strict=True):
            errors.append(relative_error(logits, text[p : p + n]))
        past = [p + n for p, n in zip(past, new, strict=True)]
    kept = [past[0] - 4, past[1] - 1]  # the rollback: the next call is given fewer cached tokens, nothing else
    changed = [text[:k] + others[k : k + 5] for text, others, k in zip(first, other, kept, strict=True)]
    parts = [(slot, k, text[k:]) for slot, text, k in zip(SLOTS, changed, kept, strict=True)]
    for logits, text, k in zip(run(session, *parts), changed, kept, strict=True):
        errors.append(relative_error(logits, reference(model, text)[k:]))
    return max(errors)


# Projections of a ragged end, queries cut off by a clip or normed with a weight a head, values normed or before keys:
# the attention is not one operator with what comes before it.
APART = {"llama-ragged", "codegen", "cohere", "nemotron", "olmo", "gpt_bigcode", "hunyuan_v1_dense", "gemma4"}


def test_logits_equal_transformers(any_name, open_session, tiny_checkpoint, tiny_export) -> None:
    _, model = tiny_checkpoint(any_name)
    assert worst_error(open_session(any_name), model) < 2e-6
    operators = {node.op_type for node in tiny_export(any_name, "fp16_tiles", "float32").model.graph}
    assert ("Transpose" in operators) == (any_name == "gpt_bigcode")
    assert ("Attention" in operators) == (any_name in APART)


MIXTURES = ("gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "glm4_moe")


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_write_what_transformers_writes(name, open_session, tiny_checkpoint) -> None:
    """Greedily, 32 tokens after each of five prompts, all in one call a step."""
    _, model = tiny_checkpoint(name)
    session, written = open_session(name), texts(2, (7, 11, 16, 23, 31))
    prompts, past = [list(text) for text in written], [0] * 5
    for _ in range(32):
        parts = [(slot, p, text[p:]) for slot, (p, text) in enumerate(zip(past, written, strict=True))]
        for index, logits in enumerate(run(session, *parts)):
            past[index] = len(written[index])
            written[index].append(int(logits[-1].argmax()))
    for prompt, text in zip(prompts, written, strict=True):
        expected = list(prompt)
        for _ in range(32):
            expected.append(int(reference(model, expected)[-1].argmax()))
        assert text == expected


@pytest.mark.parametrize("name", ["llama-tied", "gpt2"])
def test_half_precision_cache_costs_little(name, open_session, tiny_checkpoint) -> None:
    _, model = tiny_checkpoint(name)
    error = worst_error(open_session(name, caches="float16"), model)
    assert 1e-5 < error < 1e-3  # below, the cache would not have been float16


def test_packed_weights_have_the_values_of_formats(open_session, tiny_checkpoint, tiny_export) -> None:
    """The graph with MXFP6 weights equals transformers with the dequantised weights, up to its int16 activations."""
    _, model = tiny_checkpoint("llama")
    session = open_session("llama", "mxfp6_e3m2")
    twin = copy.deepcopy(model)
    state = twin.state_dict()
    weights = tiny_export("llama", "mxfp6_e3m2", "float32").weights
    for spec in (spec for spec in weights if spec.kind == "matmul"):
        values, row = unpack_values(fill_weight(spec, model.state_dict()), spec.format, *spec.shape), 0
        for source in spec.sources:
            state[source].copy_(torch.tensor(values[row : row + len(state[source])]))
            row += len(state[source])
    assert worst_error(session, twin) < 1e-3
    assert worst_error(session, model) > 1e-2  # the packed weights are others, so the check above looked at them


SETTINGS = [
    ("llama", "mxfp6_e3m2", "float32"),
    ("llama-ragged", "mxfp6_e3m2", "float16"),
    ("llama-tied", "fp16_tiles", "float16"),
    ("gpt2", "fp16_tiles", "float16"),
    ("gemma2", "fp16_tiles", "float32"),
    ("gpt_neox", "fp16_tiles", "float32"),
    ("qwen3", "mxfp6_e3m2", "float16"),
    ("olmo2", "fp16_tiles", "float32"),
    ("phi", "fp16_tiles", "float32"),
]


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = ops.threads()
    yield ops.set_threads
    ops.set_threads(before)


@pytest.mark.parametrize(("name", "weight_format", "caches"), SETTINGS)
def test_rows_do_not_depend_on_the_rest_of_the_batch(name, weight_format, caches, open_session, threads) -> None:
    """K+1 scored rows, rows beside other texts, other chunks, other threads: all have the bits of single steps."""
    session = open_session(name, weight_format, caches)
    text, other = texts(3, (41, 29))
    alone = np.concatenate([run(session, (0, i, [token]))[0] for i, token in enumerate(text)])
    for k in range(1, 9):
        assert np.array_equal(run(session, (0, 20, text[20 : 21 + k]))[0], alone[20 : 21 + k]), k
    for chunk in (41, 16, 7):
        forget(session)
        parts = [run(session, (2, p, text[p : p + chunk]))[0] for p in range(0, len(text), chunk)]
        assert np.array_equal(np.concatenate(parts), alone), chunk
    for count in (1, 3):
        threads(count)
        forget(session)
        rows = run(session, (4, 0, other[:9]), (0, 0, text), (1, 0, other[:1]))
        assert np.array_equal(rows[1], alone)
        assert np.array_equal(rows[2], rows[0][:1])
