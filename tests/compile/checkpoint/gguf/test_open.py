"""Where GGUF files are found: alone, in a folder, in shards; and what is said of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.gguf.tensor import GgufTensor
from mxspec.compile.checkpoint.tensors.derived import SelectedRows
from mxspec.compile.checkpoint.tensors.mx_tensor import MxTensor
from mxspec.formats.errors import CheckpointError
from mxspec.formats.tiles import dequantize as dequantize_mx
from tests.compile.checkpoint.gguf.conftest import make_model, tensors_of, write_gguf

Made = Callable[..., tuple[PreTrainedModel, Path]]


def write_rounded(
    path: Path, tokenizer: Tokenizer, kind: gguf.GGMLQuantizationType, *, vectors: bool = False
) -> dict[str, np.ndarray]:
    """A llama whose matrices, with `vectors` its norms too, are blocks of a type.

    Returns the values that the package makes of them, by the file's names.
    """
    model = make_model("llama")
    kept: dict[str, np.ndarray] = {}

    class Rounding(gguf.GGUFWriter):
        def add_tensor(self, name: str, tensor: np.ndarray, **_: object) -> None:  # type: ignore[override]
            if tensor.ndim == 1 and not vectors:
                super().add_tensor(name, tensor)
                return
            data = quantize(tensor, kind)
            kept[name] = np.asarray(dequantize(data, kind), np.float32)
            super().add_tensor(name, data, raw_dtype=kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFWriter", Rounding)
        write_gguf(model, path, tokenizer)
    return kept


def test_rounded_matrices_are_read_as_the_package_reads_them(tmp_path: Path, small_tokenizer: Tokenizer) -> None:
    kept = write_rounded(tmp_path / "m.gguf", small_tokenizer, gguf.GGMLQuantizationType.Q8_0)
    with Checkpoint(tmp_path) as checkpoint:
        tensor = checkpoint.tensors["model.layers.1.mlp.up_proj.weight"]
        assert isinstance(tensor, GgufTensor)
        assert (tensor.origin, tensor.origins) == ("Q8_0", {"Q8_0"})
        assert SelectedRows(tensor, np.arange(9)).origins == {"Q8_0"}
        assert np.array_equal(tensor.read_rows(0, 96), kept["blk.1.ffn_up.weight"])
        q = checkpoint.tensors["model.layers.0.self_attn.q_proj.weight"]
        heads = kept["blk.0.attn_q.weight"].reshape(4, 8, 2, 64).swapaxes(1, 2).reshape(64, 64)
        assert np.array_equal(q.read_rows(5, 40), heads[5:40])
        assert any("rounded before, to Q8_0" in note and "second time" in note for note in checkpoint.notes)


def test_mxfp4_is_taken_over_bit_for_bit(tmp_path: Path, small_tokenizer: Tokenizer) -> None:
    kept = write_rounded(tmp_path / "m.gguf", small_tokenizer, gguf.GGMLQuantizationType.MXFP4)
    with Checkpoint(tmp_path / "m.gguf") as checkpoint:
        for layer in range(2):
            k = checkpoint.tensors[f"model.layers.{layer}.self_attn.k_proj.weight"]
            assert isinstance(k, MxTensor)
            assert (k.format, k.shape) == ("mxfp4_e2m1", (32, 64))
            expected = kept[f"blk.{layer}.attn_k.weight"].reshape(2, 8, 2, 64).swapaxes(1, 2).reshape(32, 64)
            assert np.array_equal(k.read_rows(3, 29), expected[3:29])
            assert np.array_equal(dequantize_mx(*k.read_codes(0, 32), "e2m1"), expected)


def test_a_vector_of_blocks_is_refused(tmp_path: Path, small_tokenizer: Tokenizer) -> None:
    path = tmp_path / "m.gguf"
    write_rounded(path, small_tokenizer, gguf.GGMLQuantizationType.Q8_0, vectors=True)
    with pytest.raises(CheckpointError, match=r"norm.weight' of m.gguf is a vector of Q8_0, expected F32, F16, BF16"):
        Checkpoint(path)


def test_exact_files_say_nothing(gguf_of: Made) -> None:
    _, path = gguf_of("llama")
    with Checkpoint(path) as checkpoint:
        assert checkpoint.notes == []


def split(path: Path, folder: Path, count: int) -> list[Path]:
    """The shards of a file, as llama.cpp's gguf-split writes them: all keys in the first, tensors in turn."""
    reader = gguf.GGUFReader(path)
    folder.mkdir()
    paths = [folder / f"m-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    for number, shard in enumerate(paths):
        writer = gguf.GGUFWriter(shard, "llama")
        if number == 0:
            for name, field in reader.fields.items():
                if name.startswith("GGUF.") or name == "general.architecture":
                    continue
                kind = field.types[0]
                writer.add_key_value(name, field.contents(), kind, field.types[-1] if kind == 9 else None)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for place, tensor in enumerate(reader.tensors):
            if place % count == number:
                writer.add_tensor(tensor.name, np.array(tensor.data))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def test_shards_are_one_model(gguf_of: Made, tmp_path: Path) -> None:
    model, path = gguf_of("llama")
    shards = split(path, tmp_path / "shards", 3)
    for given in (shards[0], tmp_path / "shards"):
        with Checkpoint(given) as checkpoint, Checkpoint(path) as whole:
            assert checkpoint.tensors.keys() == whole.tensors.keys()
            for name, tensor in checkpoint.tensors.items():
                rows = tensor.shape[0]
                assert np.array_equal(tensor.read_rows(0, rows), whole.tensors[name].read_rows(0, rows))
    assert len(whole.tensors) == len(tensors_of(model, "llama"))


def test_a_missing_or_foreign_shard_is_named(gguf_of: Made, tmp_path: Path) -> None:
    _, path = gguf_of("llama")
    shards = split(path, tmp_path / "shards", 3)
    shutil.copyfile(shards[1], shards[2])
    with pytest.raises(CheckpointError, match="is shard 2 of 3, expected 3 of 3"):
        Checkpoint(shards[0])
    shards[2].unlink()
    with pytest.raises(CheckpointError, match=r"m-00003-of-00003\.gguf is missing"):
        Checkpoint(shards[0])
    with pytest.raises(CheckpointError, match="one of 3 shards"):
        Checkpoint(shards[1])


def test_a_folder_of_several_models_names_them(gguf_of: Made, tmp_path: Path) -> None:
    gguf_of("llama", name="a.gguf")
    gguf_of("llama", name="b.gguf")
    with pytest.raises(CheckpointError, match=r"holds 2 GGUF models \(a.gguf, b.gguf\); name one"):
        Checkpoint(tmp_path)


def test_safetensors_are_preferred_to_a_gguf_file(gguf_of: Made, tmp_path: Path) -> None:
    model, _ = gguf_of("llama")
    model.save_pretrained(tmp_path)
    with Checkpoint(tmp_path) as checkpoint:
        assert not any(isinstance(tensor, GgufTensor) for tensor in checkpoint.tensors.values())
