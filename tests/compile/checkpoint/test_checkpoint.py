"""Checkpoints on disk: what is read is what was saved, and what is damaged is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.formats.errors import CheckpointError

VALUES = torch.randn(37, 10, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')


def save(folder: Path, **tensors: torch.Tensor) -> Path:
    save_file(tensors, folder / "model.safetensors")
    return folder


def save_shards(folder: Path, weight_map: dict[str, str], shards: dict[str, dict[str, torch.Tensor]]) -> Path:
    for shard, tensors in shards.items():
        save_file(tensors, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_pieces_have_the_saved_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    values = VALUES.to(dtype)
    bits = values.view(torch.int32 if dtype == torch.float32 else torch.int16).numpy()
    save(tmp_path, other=torch.ones(3), x=values)
    with Checkpoint(tmp_path) as checkpoint:
        tensor = checkpoint.tensors["x"]
        assert (tensor.dtype, tensor.shape, tensor.bytes) == (str(dtype)[6:], (37, 10), values.nbytes)
        np.testing.assert_array_equal(tensor.read_rows(16, 37).view(bits.dtype), bits[16:37])
        np.testing.assert_array_equal(tensor.read_columns(3, 9).view(bits.dtype), bits[:, 3:9])


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    shards = {"a.safetensors": {"x": torch.ones(2)}, "b.safetensors": {"y": torch.zeros(3), "surplus": torch.zeros(1)}}
    save_shards(tmp_path, {"x": "a.safetensors", "y": "b.safetensors"}, shards)
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.tensors["x"].read_rows(0, 2).tolist() == [1, 1]
        assert checkpoint.tensors["y"].shard == "b.safetensors"
        assert "surplus" in checkpoint.tensors


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(folder)
    return str(caught.value)


def test_no_weights(tmp_path: Path) -> None:
    assert "neither model.safetensors nor" in refused(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    assert "pickled weights only" in refused(tmp_path)


def test_an_adapter_is_not_left_out_in_silence(tmp_path: Path) -> None:
    save(tmp_path, x=VALUES)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "holds an adapter" in refused(tmp_path)


def test_the_configuration_is_read_with_the_tensors(tmp_path: Path) -> None:
    with Checkpoint(save(tmp_path, x=VALUES)) as checkpoint:
        assert checkpoint.config.model_type == "llama"
    (tmp_path / "config.json").unlink()
    assert "no config.json" in refused(tmp_path)


def test_an_index_that_disagrees_with_the_shards(tmp_path: Path) -> None:
    shards = {"a.safetensors": {"x": torch.ones(2)}}
    save_shards(tmp_path, {"x": "a.safetensors", "gone": "a.safetensors"}, shards)
    assert "tensor 'gone' of model.safetensors.index.json is missing" in refused(tmp_path)
    save_shards(tmp_path, {"x": "b.safetensors"}, shards)
    assert "b.safetensors: No such file" in refused(tmp_path)
    save_shards(tmp_path, {"x": "../a.safetensors"}, shards)
    assert "not a plain file name" in refused(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert "no weight_map" in refused(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{")
    assert "not valid JSON" in refused(tmp_path)


def test_a_single_file_is_preferred_to_an_index(tmp_path: Path) -> None:
    """As in transformers: the index is stale, for whoever wrote the file did not write it."""
    config = GPT2Config(n_embd=8, n_layer=1, n_head=2, n_positions=8, vocab_size=12)
    old, new = GPT2LMHeadModel(config), GPT2LMHeadModel(config)
    old.save_pretrained(tmp_path, max_shard_size="1KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    new.save_pretrained(tmp_path / "new")
    (tmp_path / "new" / "model.safetensors").rename(tmp_path / "model.safetensors")
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path).transformer.wpe.weight
    with Checkpoint(tmp_path) as checkpoint:
        np.testing.assert_array_equal(
            checkpoint.tensors["transformer.wpe.weight"].read_rows(0, 8), theirs.detach().numpy()
        )


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    shards = {"a.safetensors": {"x": torch.ones(2)}, "b.safetensors": {"x": torch.ones(2), "y": torch.ones(1)}}
    save_shards(tmp_path, {"x": "a.safetensors", "y": "b.safetensors"}, shards)
    assert "'x' is in a.safetensors and in b.safetensors" in refused(tmp_path)


def test_a_shard_cut_short(tmp_path: Path) -> None:
    save(tmp_path, x=VALUES)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert "model.safetensors: tensors end at" in refused(tmp_path)


def test_a_shard_cut_short_while_it_is_read(tmp_path: Path) -> None:
    with Checkpoint(save(tmp_path, x=VALUES)) as checkpoint:
        (tmp_path / "model.safetensors").write_bytes(b"")
        with pytest.raises(CheckpointError, match="became shorter"):
            checkpoint.tensors["x"].read_rows(0, 1)


def test_integer_weights_are_refused_when_they_are_read(tmp_path: Path) -> None:
    with Checkpoint(save(tmp_path, x=torch.ones(4, dtype=torch.int8))) as checkpoint:
        assert checkpoint.tensors["x"].dtype == "I8"
        with pytest.raises(CheckpointError, match=r"'x' of model\.safetensors is I8"):
            checkpoint.tensors["x"].read_rows(0, 1)
