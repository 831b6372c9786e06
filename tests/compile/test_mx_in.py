"""Models that are MX in the checkpoint, through the whole compile: transformers with the dequantised weights agrees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.names import name_parameters
from mxspec.compile.planning.formats import Formats, own_formats
from mxspec.compile.planning.model import Model
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.weights.rounding.round_model import mx_formats
from mxspec.compile.weights.write_model import write_model
from mxspec.formats.errors import CheckpointError, RecipeError
from mxspec.formats.manifest import ModelEntry, TensorEntry
from mxspec.formats.tiles import unpack
from mxspec.formats.weight_format import packed_shape
from mxspec.recipes.recipe import DraftRecipe, Recipe, TargetRecipe
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session
from tests.compile.checkpoint.test_mx_checkpoint import COMPRESSED, dequantised, in_order, quark

LLAMA = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 120, "max_position_embeddings": 96, "attention_bias": True,
}  # fmt: skip
FORMATS = {"fp4": "mxfp4_e2m1", "fp6_e2m3": "mxfp6_e2m3"}
QUARK = quark("fp4", **{"*.v_proj": "fp6_e2m3"})

Codes = dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8], str]]  # by parameter: codes, scales, Quark's word


def write_mx(
    folder: Path, quantization: dict[str, Any], *, head: bool = False, **settings: Any
) -> tuple[PreTrainedModel, Codes]:
    """A random checkpoint, its linear layers MX; the model that holds what the codes stand for, and the codes."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("llama", **LLAMA | settings), attn_implementation="eager", dtype=torch.float32
    )
    rng, codes, tensors = np.random.default_rng(0), {}, {}
    compressed = quantization is COMPRESSED
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            module = name.removesuffix(".weight")
            if "_proj.weight" not in name and not (head and module == "lm_head"):
                spread = 1.0 if parameter.ndim > 1 else 0.2
                parameter.copy_((parameter + spread * torch.randn_like(parameter)).bfloat16().float())
                tensors[name] = parameter.bfloat16().contiguous()
                continue
            kind = "fp6_e2m3" if not compressed and "v_proj" in name else "fp4"
            bits, (n, k) = {"fp4": 4, "fp6_e2m3": 6}[kind], parameter.shape
            found = rng.integers(0, 1 << bits, (n, k)).astype(np.uint8)
            scales = rng.integers(120, 124, (n, k // 32)).astype(np.uint8)
            parameter.copy_(torch.from_numpy(dequantised(found, scales, FORMATS[kind])))
            codes[name] = found, scales, kind
            tensors[f"{module}.weight_packed" if compressed else name] = torch.from_numpy(in_order(found, bits))
            tensors[f"{module}.weight_scale"] = torch.from_numpy(scales)
    config = model.config.to_dict() | {"quantization_config": quantization, "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return model.eval(), codes


def compile_in(folder: Path, **wanted: Any) -> ModelEntry:
    target, draft = TargetRecipe(checkpoint="x", **wanted), DraftRecipe(checkpoint="x")
    recipe = Recipe(name="x", k_max=3, prefill_chunk=8, caches="float32", target=target, draft=draft)
    with Checkpoint(folder) as checkpoint:
        plan = plan_model(Model("target", checkpoint, target, recipe, 64))
        assert not any("_proj" in name for name in mx_formats(plan))  # gptq and scale leave codes alone
        read: list[int] = []
        entry = write_model(plan, folder, read.append).entry
        assert sum(read) == plan.read_bytes
        return entry


def logits_error(folder: Path, entry: ModelEntry, model: PreTrainedModel) -> float:
    ids = np.random.default_rng(1).integers(3, 118, 40).tolist()
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([ids])).logits[0].numpy()
    session = Session(folder, entry, entry.vocab_size, slots=1)
    parts = [ids[:30], ids[30:31], ids[31:]]
    starts = [0, 30, 31]
    got = np.concatenate(
        [session.run([Part(0, start, part, len(part))]).copy() for start, part in zip(starts, parts, strict=True)]
    )
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def stored_codes(folder: Path, entry: ModelEntry, tensor: TensorEntry) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    n, k = tensor.shape
    tiles = np.fromfile(folder / entry.weights, np.uint8, tensor.bytes, offset=tensor.offset)
    return unpack(tiles.reshape(packed_shape(tensor.format, n, k)), n, k, tensor.format.split("_")[1])


def parameters(tensor: TensorEntry) -> list[str]:
    return [source.replace("weight_packed", "weight") for source in tensor.sources]


def assert_own(folder: Path, entry: ModelEntry, codes: Codes) -> None:
    """Every matrix of the checkpoint is in the bundle, bit for bit."""
    own = [tensor for tensor in entry.tensors if tensor.own_codes]
    assert sorted(name for tensor in own for name in parameters(tensor)) == sorted(codes)
    for tensor in own:
        assert (tensor.error, tensor.underflowed) == (0.0, 0)
        found = stored_codes(folder, entry, tensor)
        for part, index in zip(found, (0, 1), strict=True):
            np.testing.assert_array_equal(part, np.concatenate([codes[name][index] for name in parameters(tensor)]))
        assert {FORMATS[codes[name][2]] for name in parameters(tensor)} == {tensor.format}


def test_compressed_tensors(tmp_path: Path) -> None:
    model, codes = write_mx(tmp_path, COMPRESSED, tie_word_embeddings=True)
    entry = compile_in(tmp_path, keep_fp16=("lm_head.*",))
    assert entry.format == "mxfp4_e2m1"
    assert_own(tmp_path, entry, codes)
    assert any("q_proj+k_proj+v_proj" in tensor.name for tensor in entry.tensors)  # of one format: one product
    assert logits_error(tmp_path, entry, model) < 2e-4


def test_quark_of_two_formats(tmp_path: Path) -> None:
    """A fused product has one format: v, which has another, stays by itself."""
    model, codes = write_mx(tmp_path, QUARK | {"exclude": []}, head=True)
    entry = compile_in(tmp_path)
    assert_own(tmp_path, entry, codes)
    names = [tensor.name for tensor in entry.tensors]
    assert "model.layers.0.self_attn.q_proj+k_proj.weight" in names
    assert "model.layers.0.self_attn.v_proj.weight" in names
    assert logits_error(tmp_path, entry, model) < 2e-4


def test_fp16_holds_the_same_values(tmp_path: Path) -> None:
    """What a baseline does: no code is left, and no value changes."""
    model, codes = write_mx(tmp_path, QUARK)
    entry = compile_in(tmp_path, format="fp16_tiles")
    assert entry.format == "fp16_tiles"
    assert not any(tensor.own_codes for tensor in entry.tensors)
    assert all(tensor.error == 0.0 for tensor in entry.tensors if any(name in codes for name in tensor.sources))
    assert logits_error(tmp_path, entry, model) < 1e-5


def formats_of(folder: Path, **wanted: Any) -> Callable[[str], str]:
    with Checkpoint(folder) as checkpoint:
        model = name_parameters(checkpoint.config)
        return Formats(model, TargetRecipe(checkpoint="x", **wanted), own_formats(model, checkpoint)).of


def test_matrices_that_are_not_mx_follow_the_recipe(tmp_path: Path) -> None:
    write_mx(tmp_path, COMPRESSED)
    head, down = "lm_head.weight", "model.layers.0.mlp.down_proj.weight"
    chosen = formats_of(tmp_path)
    assert (chosen(head), chosen(down)) == ("mxfp6_e2m3", "mxfp4_e2m1")
    chosen = formats_of(tmp_path, formats=(("lm_head.*", "mxint8"),))
    assert (chosen(head), chosen(down)) == ("mxint8", "mxfp4_e2m1")
    chosen = formats_of(tmp_path, format="mxfp4_e2m1")
    assert (chosen(head), chosen(down)) == ("mxfp4_e2m1", "mxfp4_e2m1")
    assert formats_of(tmp_path, keep_fp16=("*.down_proj.*",))(down) == "fp16_tiles"


@pytest.mark.parametrize("wanted", [{"format": "mxfp6_e3m2"}, {"formats": (("*.o_proj.*", "mxint8"),)}])
def test_codes_are_not_rounded_a_second_time(tmp_path: Path, wanted: dict[str, Any]) -> None:
    write_mx(tmp_path, COMPRESSED)
    with pytest.raises(RecipeError, match=r"_proj\.weight is mxfp4_e2m1 in the checkpoint, and .* a second time"):
        formats_of(tmp_path, **wanted)("model.layers.0.self_attn.o_proj.weight")


def test_a_tied_head_that_is_mx_beside_a_plain_embedding(tmp_path: Path) -> None:
    write_mx(tmp_path, QUARK | {"exclude": []}, head=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight' and 'model\.embed_tokens\.weight' are one parameter"):
        formats_of(tmp_path)
