"""Encoder-decoders, compiled: two graphs over one weights file, against transformers with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnx_ir as ir
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from mxspec.compile.check.own_weights import check_own_weights
from mxspec.compile.check.specialize import check_specializations
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.settings.generation_config import read_special_tokens
from mxspec.compile.commands.speccompile import main
from mxspec.compile.planning.model import Model, ModelPlan
from mxspec.compile.planning.outline import outline_models
from mxspec.compile.planning.pair import check_kinds
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.trace.modules import distance_bias
from mxspec.compile.weights.write_model import write_model
from mxspec.formats.errors import CheckFailed, CheckpointError, PairError
from mxspec.formats.manifest import ModelEntry
from mxspec.formats.weight_format import FP16_TILES, WEIGHT_FORMATS
from mxspec.recipes.recipe import Recipe, TargetRecipe

Checkpoints = Callable[[str], tuple[Path, PreTrainedModel]]
CONTEXT, SOURCE = 96, 64
FORMATS = (("model.encoder.*", "mxfp6_e2m3"), ("*.self_attn.*", "mxfp4_e2m1"), ("*.encoder_attn.*", "mxint8"))
MIXED = {"format": "mxfp6_e3m2", "formats": FORMATS, "keep_fp16": ("*.fc2.weight",)}


@dataclass(frozen=True)
class Compiled:
    """What a checkpoint was compiled to, and how far its logits are from transformers'."""

    recipe: Recipe
    config: PreTrainedConfig
    plan: ModelPlan
    folder: Path
    entry: ModelEntry
    error: float


@pytest.fixture(scope="module")
def compiled(tiny_checkpoint: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Compiled]:
    """Call it with a name of WITH_ENCODER; BART has a matrix of each format, the others are fp16."""

    @cache
    def compile_it(name: str) -> Compiled:
        path, folder = tiny_checkpoint(name)[0], tmp_path_factory.mktemp(name)
        wanted = MIXED if name == "bart" else {"format": FP16_TILES}
        target = TargetRecipe.model_validate({"checkpoint": str(path)} | wanted)
        lengths = {"context_length": CONTEXT, "source_length": SOURCE, "k_max": 4, "prefill_chunk": 12}
        recipe = Recipe.model_validate({"name": "x", "target": target, "caches": "float32"} | lengths)
        with Checkpoint(path) as checkpoint:
            plan = plan_model(Model("target", checkpoint, target, recipe, CONTEXT))
            entry = write_model(plan, folder, lambda _: None).entry
            found = check_own_weights(folder, entry, checkpoint)
        assert found is not None
        return Compiled(recipe, checkpoint.config, plan, folder, entry, found.stored.error)

    return compile_it


def tables(entry: ModelEntry) -> list[tuple[str, str, bool]]:
    """Name, format and whether tokens are looked up there, of what was made of the shared embedding."""
    shared = [tensor for tensor in entry.tensors if "shared.weight" in "".join(tensor.sources)]
    return [(tensor.name, tensor.format, tensor.looked_up) for tensor in shared]


def test_logits_equal_transformers(name_with_encoder: str, compiled: Callable[[str], Compiled]) -> None:
    model = compiled(name_with_encoder)
    entry = model.entry
    assert model.error < (1e-3 if name_with_encoder == "bart" else 8e-6)
    check_specializations(model.folder, entry, entry.vocab_size, entry.specializations)  # the same bits in any batch
    assert entry.encoder is not None
    assert (entry.encoder.layers, entry.encoder.context_length) == (1, SOURCE)
    assert {path.name for path in model.folder.iterdir()} == {entry.graph, entry.encoder.graph, entry.weights}


def test_a_shared_embedding_is_stored_once(name_with_encoder: str, compiled: Callable[[str], Compiled]) -> None:
    model = compiled(name_with_encoder)
    held = {tensor.name for tensor in model.entry.tensors}
    decoder, encoder = ({*graph.graph.initializers} & held for graph in model.plan.exported.graphs)
    assert decoder | encoder == held
    embedding, head = ("decoder.embed_tokens.weight", "fp16", False), ("lm_head.weight", FP16_TILES, True)
    if name_with_encoder == "bart":  # a pattern that names one of a shared parameter's modules names it
        stored = [("model.decoder.embed_tokens.weight", "fp16", False), ("lm_head.weight", "mxfp6_e2m3", False)]
    else:
        stored = [embedding if name_with_encoder == "mt5" else head]
    assert tables(model.entry) == stored
    assert {stored[0][0]} <= decoder & encoder <= {stored[0][0], "model.decoder.embed_positions.sinusoids"}


def test_graphs_are_the_contract(compiled: Callable[[str], Compiled]) -> None:
    plan = compiled("t5").plan

    def described(values: list[ir.Value]) -> list[str]:
        return [f"{value.name} {value.dtype.name if value.dtype else None} {value.shape}" for value in values]

    def caches(kind: str, capacity: str) -> list[str]:
        both = [f"{kind}_{what}.{layer}" for layer in range(2) for what in ("key", "value")]
        return [f"{name} FLOAT [slots,4,{capacity},16]" for name in both]

    ids, lengths = "INT64 [1,tokens]", "INT32 [sequences]"
    decoder, encoder = (graph.graph for graph in plan.exported.graphs)
    assert described(list(decoder.inputs)) == [
        f"input_ids {ids}",
        f"position_ids {ids}",
        *(f"{name} {lengths}" for name in ("slots", "past_lengths", "new_lengths")),
        "logits_to_keep INT64 [rows]",
        *caches("past", "capacity"),
        f"encoder_lengths {lengths}",
        *caches("cross", "encoder_capacity"),
    ]
    assert described(list(decoder.outputs)) == ["logits FLOAT [rows,120]", *caches("present", "capacity")]
    assert described(list(encoder.inputs)) == [
        f"input_ids {ids}",
        f"position_ids {ids}",
        *(f"{name} {lengths}" for name in ("slots", "new_lengths")),
        *caches("cross", "encoder_capacity"),
    ]
    assert described(list(encoder.outputs)) == caches("present_cross", "encoder_capacity")


def test_every_format_packs(compiled: Callable[[str], Compiled]) -> None:
    assert {tensor.format for tensor in compiled("bart").entry.tensors} >= WEIGHT_FORMATS.keys()


def test_an_outline_has_the_compiled_sizes(name_with_encoder: str, compiled: Callable[[str], Compiled]) -> None:
    model = compiled(name_with_encoder)
    (found,) = outline_models(model.recipe, {"target": model.config})
    assert found.file_bytes == (model.folder / model.entry.weights).stat().st_size
    packed = [tensor for tensor in model.entry.tensors if tensor.format in WEIGHT_FORMATS]
    assert len(found.matrices) == sum(len(tensor.sources) for tensor in packed)
    assert found.cache_bytes == 2 * 4 * model.entry.layers * 64 * (CONTEXT + SOURCE)


# --- biases by distance ---


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (16, 40), (8, 300)])
def test_a_bias_by_distance_is_that_of_transformers(is_decoder: bool, buckets: int, furthest: int) -> None:
    config = T5Config(num_heads=4, relative_attention_num_buckets=buckets, relative_attention_max_distance=furthest)
    config.is_decoder = is_decoder
    attention = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    torch.nn.init.normal_(attention.relative_attention_bias.weight)
    bias = distance_bias(attention)
    expected = attention.compute_bias(400, 400)[0]
    positions = torch.arange(400)
    distances = positions[None] - positions[:, None]
    places = (distances - bias.first).clamp(0, len(bias.rows) - 1)
    seen = distances <= 0 if is_decoder else torch.ones_like(distances, dtype=torch.bool)
    assert torch.equal(bias()[:, places][:, seen], expected[:, seen])


def test_biases_of_t5_saturate() -> None:
    for is_decoder, places, first in ((True, 114, -113), (False, 183, -91)):
        config = T5Config(num_heads=4)
        config.is_decoder = is_decoder
        bias = distance_bias(T5Attention(config, has_relative_attention_bias=True, layer_idx=0))
        assert (len(bias.rows), bias.first) == (places, first)


@pytest.mark.parametrize("graph", ["target.onnx", "target_encoder.onnx"])
def test_a_bias_that_is_one_token_off_is_seen(
    graph: str, compiled: Callable[[str], Compiled], tiny_checkpoint: Checkpoints, tmp_path: Path
) -> None:
    right = compiled("t5")
    for path in right.folder.iterdir():
        (tmp_path / path.name).hardlink_to(path)
    model = ir.load(right.folder / graph)
    node = next(node for node in model.graph if "first_distance" in node.attributes)
    first = node.attributes["first_distance"].as_int()
    node.attributes["first_distance"] = ir.AttrInt64("first_distance", first + 1)
    (tmp_path / graph).unlink()
    ir.save(model, tmp_path / graph)
    with Checkpoint(tiny_checkpoint("t5")[0]) as checkpoint, pytest.raises(CheckFailed, match="differs from transf"):
        check_own_weights(tmp_path, right.entry, checkpoint)


# --- what is refused ---


def test_pairs_of_two_kinds() -> None:
    t5, llama = T5Config(architectures=["T5ForConditionalGeneration"]), AutoConfig.for_model("llama")
    check_kinds(t5, t5)
    check_kinds(llama, llama)
    with pytest.raises(PairError, match=r"T5ForConditionalGeneration, is an encoder-decoder, but the draft, llama"):
        check_kinds(t5, llama)
    with pytest.raises(PairError, match=r"llama, is a decoder alone, but the draft, T5ForConditionalGeneration, is an"):
        check_kinds(llama, t5)


def refused(*arguments: object) -> str:
    """What speccompile says where it refuses these."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 1, result.output
    return " ".join(result.output.split())


def test_the_command_refuses_before_it_works(tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    (t5, _), (llama, _), output = tiny_checkpoint("t5"), tiny_checkpoint("llama"), tmp_path / "x.bundle"
    assert "is an encoder-decoder, but the draft" in refused(t5, "--draft", llama, "-o", output)
    assert "is a decoder alone, but the draft" in refused(llama, "--draft", t5, "-o", output)
    text = ("--calibrate", __file__)
    assert "'gptq' does not support models with an encoder" in refused(t5, "--rounding", "gptq", *text, "-o", output)
    assert not output.exists()


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"decoder_start_token_id": 2}, {}, (2,)),
        ({"decoder_start_token_id": 2}, {"decoder_start_token_id": 3, "forced_bos_token_id": 0}, (3, 0)),
        ({"bos_token_id": 1}, {}, (1,)),
    ],
)
def test_a_decoders_first_ids(
    config: dict[str, int], generation: dict[str, int], expected: tuple[int, ...], tmp_path: Path
) -> None:
    for name, values in (("config.json", config), ("generation_config.json", generation)):
        (tmp_path / name).write_text(str(values).replace("'", '"'))
    entry = read_special_tokens(tmp_path, "0" * 64, 10, is_encoder_decoder=True)
    assert entry.decoder_start == expected
    assert read_special_tokens(tmp_path, "0" * 64, 10).decoder_start == ()


def test_a_decoder_without_a_start_token(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has a decoder_start_token_id"):
        read_special_tokens(tmp_path, "0" * 64, 10, is_encoder_decoder=True)
