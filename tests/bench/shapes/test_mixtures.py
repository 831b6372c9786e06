"""Mixtures of random weights: as large as the published models, and measured by what their calls read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from bench.shapes.known import ALL_SHAPES, MIXTURES, MixtureShape
from bench.shapes.random_bundle import config_of, random_bundle
from mxspec.compile.checkpoint.names import name_parameters
from mxspec.evaluate.bench import calls
from mxspec.evaluate.lossless.drafters import RandomDrafter
from mxspec.formats.bundle import Bundle
from mxspec.formats.manifest import ModelEntry
from mxspec.formats.weight_format import WEIGHT_FORMATS
from mxspec.runtime.cli.report import closing_line
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Finished
from mxspec.runtime.models import weight_reads

Specbench = Callable[..., Result]

# Parameters of the published checkpoints, as the models' pages count them.
PUBLISHED = {"olmoe-1b-7b": 6_919_161_856, "qwen3-30b-a3b": 30_532_122_624, "gpt-oss-20b": 20_914_757_184}
SMALL = {
    "vocab_size": 272, "hidden_size": 64, "expert_width": 32, "experts": 8, "chosen": 2, "layers": 2, "heads": 4,
    "kv_heads": 2, "head_size": 16, "context_length": 96,
}  # fmt: skip


def small(name: str) -> MixtureShape:
    return replace(MIXTURES[name], **SMALL)


@pytest.fixture
def mixture(request: pytest.FixtureRequest, tmp_path: Path) -> ModelEntry:
    bundle = random_bundle(small(request.param), tmp_path, "mxfp6_e2m3", activations="int8")
    return Bundle.open(bundle).manifest.models["target"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_have_as_many_weights_as_the_published_models(name: str) -> None:
    model = name_parameters(config_of(MIXTURES[name]))
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[name]


@pytest.mark.parametrize("mixture", PUBLISHED, indirect=True)
def test_a_call_reads_the_chosen_experts_and_everything_else(mixture: ModelEntry) -> None:
    """Of two layers the attention, the router and two of eight experts; and the head."""
    assert mixture.experts is not None
    assert (mixture.experts.count, mixture.experts.chosen, len(mixture.experts.tensors)) == (8, 2, 4)
    of_experts = [tensor for tensor in mixture.tensors if "experts" in tensor.name and len(tensor.shape) == 2
                  and tensor.format in WEIGHT_FORMATS]  # fmt: skip
    assert {tensor.name for tensor in of_experts} == set(mixture.experts.tensors)
    four_bits = mixture.architecture == "GptOssForCausalLM"
    assert {tensor.format for tensor in of_experts} == {"mxfp4_e2m1" if four_bits else "mxfp6_e2m3"}
    block = 17 if four_bits else 25  # bytes of 32 weights
    expert = (2 * 32 * 64 + 64 * 32) // 32 * block
    assert weight_reads.expert_bytes(mixture) == 2 * 8 * expert
    attention = (64 + 2 * 32) * 64 + 64 * 64
    others = 2 * (attention // 32 * 25 + 16 * 64 * 2) + 272 * 64 // 32 * 25
    others += sum(tensor.bytes for tensor in mixture.tensors if tensor.name == "ones_2")  # adds up chosen weights
    assert weight_reads.matrix_bytes(mixture) == others + 2 * 8 * expert
    assert weight_reads.read_bytes(mixture) == others + 2 * 2 * expert
    assert weight_reads.read_bytes(mixture, 3) == others + round(2 * 8 * expert * (1 - 0.75**3))


def test_the_operators_count_what_a_call_reads(
    specbench: Specbench, laboratory: Specbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(ALL_SHAPES, "olmoe-1b-7b", small("olmoe-1b-7b"))
    made = laboratory("shape", "olmoe-1b-7b", "--layers", "1", "--work", str(tmp_path))
    result = specbench("model", made.stdout.strip(), "--repetitions", "1", "--json")
    assert result.exit_code == 0, result.output
    got = json.loads(result.stdout)
    assert got["bundle"] == "olmoe-1b-7b-1-layers-mxfp6_e3m2.bundle"
    assert got["experts"] == {"count": 8, "chosen": 2}
    read = {(c["tokens"], c["cached"]): round(c["bytes_per_second"] * c["seconds"]) for c in got["calls"]}
    entry = Bundle.open(tmp_path / got["bundle"]).manifest.models["target"]
    assert read[1, 8] == got["weight_bytes"] == weight_reads.read_bytes(entry)
    experts_together = weight_reads.expert_bytes(entry)
    others, expert = weight_reads.matrix_bytes(entry) - experts_together, experts_together // 8
    for (tokens, _), size in read.items():
        experts = (size - others) / expert
        assert experts == round(experts)
        assert 2 <= experts <= min(8, 2 * tokens)

    (call,) = profiled(laboratory, tmp_path / got["bundle"])["calls"]
    (line,) = [line for line in call["lines"] if line["group"] == "experts"]
    assert (line["ops"], line["nodes"]) == (["PackedExperts"], 1)
    assert line["bytes"] in {count * expert for count in range(2, 7)}
    products = sum(line["bytes"] for line in call["lines"] if line["group"] == "product")
    assert products == others
    assert call["read_bytes"] == sum(line["bytes"] for line in call["lines"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_tokens_of_random_weights_choose_independently(name: str, tmp_path: Path) -> None:
    """As many experts as independent choices give, within 5 %: those of trained, balanced routers."""
    shape = replace(
        MIXTURES[name], **SMALL | {"hidden_size": 256, "heads": 16, "kv_heads": 16, "experts": 64, "chosen": 8}
    )
    bench = calls.ModelBench(random_bundle(shape, tmp_path, "mxfp6_e2m3", activations="int8"))
    bench.fill(40)
    counted = np.mean([bench.expert_bytes(bench.random_ids(8)) for _ in range(20)])
    expected = weight_reads.expert_bytes(bench.entry) * (1 - (1 - 8 / 64) ** 8)
    assert counted == pytest.approx(expected, rel=0.05)


def profiled(laboratory: Specbench, bundle: Path) -> Any:
    result = laboratory("profile", str(bundle), "--rows", "3", "--cached", "5", "--repetitions", "1", "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_table_says_what_one_token_reads(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path = random_bundle(small("gpt-oss-20b"), tmp_path)
    result = specbench("model", str(path), "--repetitions", "1")
    assert result.exit_code == 0, result.output
    assert "MB read" in result.stderr
    assert "MB for one token, with 2 of 8 experts in each layer" in result.stderr


def test_an_answer_says_how_many_experts_a_step_touched(tmp_path: Path) -> None:
    """Two of eight for one token; more where several tokens are scored."""
    path = random_bundle(small("qwen3-30b-a3b"), tmp_path)
    with Engine(path, slots=2) as engine:
        alone, drafted = (
            next(event.statistics for event in engine.generate([3, 4, 5], **settings) if isinstance(event, Finished))
            for settings in (
                {"max_new_tokens": 12, "k": 0, "ignore_eos": True},
                {"max_new_tokens": 12, "k": 4, "ignore_eos": True, "drafter": RandomDrafter(SMALL["vocab_size"])},
            )
        )
    assert alone.experts_a_step == 2.0
    assert drafted.experts_a_step is not None
    assert 2.0 < drafted.experts_a_step <= 8.0
    assert " · 2.0 experts a layer · " in closing_line(alone, "max_new_tokens")
