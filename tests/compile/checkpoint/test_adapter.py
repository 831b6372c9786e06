"""LoRA adapters: the weights that are read are W + scale * B A in float64, and what is not plain LoRA is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.formats.errors import MxspecError

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
LLAMA = {**SIZES, "intermediate_size": 48, "num_key_value_heads": 1, "tie_word_embeddings": False}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64}
QUERY, DOWN, HEAD = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj", "lm_head"
RANK = 4


def write_base(folder: Path, kind: str, dtype: torch.dtype = torch.bfloat16, **settings: Any) -> Path:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, bos_token_id=1, eos_token_id=2, **settings)
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    return folder


def write_adapter(
    folder: Path, shapes: dict[str, tuple[int, int, int]], dtype: torch.dtype = torch.float32, **settings: Any
) -> Path:
    """A random adapter; `shapes` are n, k and r of modules."""
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for module, (n, k, r) in shapes.items():
        for half, shape in (("A", (r, k)), ("B", (n, r))):
            tensors[f"base_model.model.{module}.lora_{half}.weight"] = torch.randn(shape, generator=generator).to(dtype)
    save_file(tensors, folder / "adapter_model.safetensors")
    found = {"peft_type": "LORA", "r": RANK, "lora_alpha": 6, "bias": "none", "lora_dropout": 0.1} | settings
    (folder / "adapter_config.json").write_text(json.dumps(found))
    return folder


def expected(base: Path, adapter: Path, tensor: str, module: str, scale: float, transposed: bool = False) -> Any:
    weight = load_file(base / "model.safetensors")[tensor].double()
    update = load_file(adapter / "adapter_model.safetensors")
    a, b = (update[f"base_model.model.{module}.lora_{half}.weight"].double() for half in "AB")
    added = scale * (b @ a)
    return (weight + (added.T if transposed else added)).numpy()


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """For a base and an adapter."""
    for name in ("base", "adapter"):
        (tmp_path / name).mkdir()
    return tmp_path / "base", tmp_path / "adapter"


SCALES: list[tuple[dict[str, Any], float, float]] = [
    ({}, 6 / 4, 6 / 4),
    ({"use_rslora": True}, 3, 3),
    ({"alpha_pattern": {"down_proj": 10}}, 6 / 4, 10 / 4),
    ({"alpha_pattern": {r"model\.layers\.\d\.self_attn\.q_proj": 1, ".*proj": 2}}, 1 / 4, 2 / 4),
    ({"alpha_pattern": {"proj": 10, "layers.0": 3}}, 6 / 4, 6 / 4),  # neither names the end of a module
    ({"r": 16, "rank_pattern": {"q_proj": 4, "mlp.down_proj": 4}, "lora_alpha": 5}, 5 / 4, 5 / 4),
]


@pytest.mark.parametrize(("settings", "of_query", "of_down"), SCALES)
def test_linear_layers(folders: tuple[Path, Path], settings: dict[str, Any], of_query: float, of_down: float) -> None:
    base, adapter = write_base(folders[0], "llama", **LLAMA), folders[1]
    write_adapter(adapter, {QUERY: (32, 32, RANK), DOWN: (32, 48, RANK)}, **settings)
    with Checkpoint(base, adapter) as checkpoint, Checkpoint(base) as plain:
        for module, scale in ((QUERY, of_query), (DOWN, of_down)):
            tensor = checkpoint.tensors[f"{module}.weight"]
            right = expected(base, adapter, f"{module}.weight", module, scale)
            assert tensor.dtype == "float32"
            got = np.concatenate([tensor.read_rows(0, 16), tensor.read_rows(16, 32)])
            np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5)
            assert tensor.identity != plain.tensors[f"{module}.weight"].identity
        assert checkpoint.tensors.keys() == plain.tensors.keys()
        untouched = "model.layers.1.self_attn.q_proj.weight"
        assert checkpoint.tensors[untouched].dtype == "bfloat16"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_transposed_layers(folders: tuple[Path, Path], dtype: torch.dtype) -> None:
    """Of GPT-2, whose checkpoints may also lack the prefix of their names."""
    base, module = write_base(folders[0], "gpt2", **GPT2), "transformer.h.1.attn.c_attn"
    tensors = load_file(base / "model.safetensors").items()
    save_file(
        {name.removeprefix("transformer."): value for name, value in tensors},
        base / "model.safetensors",
        {"format": "pt"},
    )
    adapter = write_adapter(folders[1], {module: (96, 32, RANK)}, dtype, fan_in_fan_out=True)
    right = expected(base, adapter, "h.1.attn.c_attn.weight", module, 6 / 4, transposed=True)
    with Checkpoint(base, adapter) as checkpoint:
        tensor = checkpoint.tensors["h.1.attn.c_attn.weight"]
        np.testing.assert_allclose(tensor.read_rows(0, 32), right, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(tensor.read_columns(16, 48), right[:, 16:48], rtol=1e-5, atol=1e-5)


def test_a_pickled_adapter(folders: tuple[Path, Path]) -> None:
    base, adapter = write_base(folders[0], "llama", **LLAMA), write_adapter(folders[1], {QUERY: (32, 32, RANK)})
    right = expected(base, adapter, f"{QUERY}.weight", QUERY, 6 / 4)
    path = adapter / "adapter_model.safetensors"
    torch.save(load_file(path), path.with_suffix(".bin"))
    path.unlink()
    assert "--from-pickle" in refused(base, adapter)
    with Checkpoint(base, adapter, from_pickle=True) as checkpoint:
        got = checkpoint.tensors[f"{QUERY}.weight"].read_rows(0, 32)
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5)


def test_an_adapter_beside_its_base(folders: tuple[Path, Path]) -> None:
    base = write_base(folders[0], "llama", **LLAMA)
    write_adapter(base, {QUERY: (32, 32, RANK)})
    with Checkpoint(base, base) as checkpoint:
        assert checkpoint.tensors[f"{QUERY}.weight"].dtype == "float32"


def refused(base: Path, adapter: Path) -> str:
    with pytest.raises(MxspecError) as caught:
        Checkpoint(base, adapter)
    line = str(caught.value)
    assert "\n" not in line
    return line


REFUSED = [
    {"use_dora": True},
    {"bias": "lora_only"},
    {"lora_bias": True},
    {"init_lora_weights": "pissa"},
    {"modules_to_save": ["lm_head"]},
    {"layer_replication": [[0, 2]]},
    {"trainable_token_indices": [1]},
    {"of_tomorrow": 1},
    {"peft_type": "IA3"},
    {"alpha_pattern": {"(": 1}},
    {"rank_pattern": [1]},
    {"lora_alpha": "6"},
    {"r": 0},
]


@pytest.mark.parametrize("settings", REFUSED, ids=lambda settings: next(iter(settings)))
def test_more_than_plain_lora_is_refused_by_its_key(folders: tuple[Path, Path], settings: dict[str, Any]) -> None:
    base, adapter = write_base(folders[0], "llama", **LLAMA), folders[1]
    assert next(iter(settings)) in refused(base, write_adapter(adapter, {QUERY: (32, 32, RANK)}, **settings))


def test_adapters_of_other_models(folders: tuple[Path, Path]) -> None:
    base, adapter = write_base(folders[0], "llama", **LLAMA), folders[1]
    assert "no tensors" in refused(base, write_adapter(adapter, {}))
    (adapter / "adapter_model.safetensors").unlink()
    assert "no adapter_model.safetensors" in refused(base, adapter)
    assert "right base" in refused(base, write_adapter(adapter, {"model.layers.7.mlp.up_proj": (48, 32, RANK)}))
    assert "another checkpoint" in refused(base, write_adapter(adapter, {QUERY: (64, 32, RANK)}))
    assert "has rank 4, but its lora_A has 8 rows" in refused(base, write_adapter(adapter, {QUERY: (32, 32, 8)}))


def test_tensors_that_are_not_of_linear_layers(folders: tuple[Path, Path]) -> None:
    base, adapter = write_base(folders[0], "llama", **LLAMA), write_adapter(folders[1], {QUERY: (32, 32, RANK)})
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    for name in ("model.embed_tokens.lora_embedding_A", f"{HEAD}.weight", f"{QUERY}.lora_magnitude_vector"):
        save_file(tensors | {f"base_model.model.{name}": torch.zeros(4)}, path)
        assert name in refused(base, adapter)
    tensors.pop(f"base_model.model.{QUERY}.lora_A.weight")
    save_file(tensors, path)
    assert "lacks lora_A or lora_B" in refused(base, adapter)


def test_the_copy_of_the_base_that_comes_with_a_head(folders: tuple[Path, Path]) -> None:
    base, adapter = write_base(folders[0], "llama", **LLAMA), write_adapter(folders[1], {HEAD: (64, 32, RANK)})
    path, copy = adapter / "adapter_model.safetensors", load_file(base / "model.safetensors")[f"{HEAD}.weight"].float()
    tensors = load_file(path)
    save_file(tensors | {f"base_model.model.{HEAD}.base_layer.weight": copy}, path)
    with Checkpoint(base, adapter) as checkpoint:
        assert checkpoint.tensors[f"{HEAD}.weight"].dtype == "float32"
    save_file(tensors | {f"base_model.model.{HEAD}.base_layer.weight": copy + 1}, path)
    assert "a weight of its own" in refused(base, adapter)


def test_a_tied_head_is_refused(folders: tuple[Path, Path]) -> None:
    base = write_base(folders[0], "llama", **LLAMA | {"tie_word_embeddings": True})
    assert "is tied" in refused(base, write_adapter(folders[1], {HEAD: (64, 32, RANK)}))
