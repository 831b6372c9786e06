"""Pickled checkpoints: only where they are asked for, their tensors bit for bit, and never a call that they ask for."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.tensors.pickled_shard import open_pickle
from mxspec.compile.checkpoint.tensors.tensor import as_float32
from mxspec.formats.errors import CheckpointError

VALUES = torch.randn(37, 10, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')


def save(folder: Path, content: object, name: str = "pytorch_model.bin", **settings: Any) -> Path:
    torch.save(content, folder / name, **settings)
    return folder


def values_of(checkpoint: Checkpoint, name: str) -> Any:
    tensor = checkpoint.tensors[name]
    return as_float32(tensor.read_rows(0, tensor.shape[0]), tensor.dtype)


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(folder, from_pickle=True)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_pieces_have_the_saved_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    values = VALUES.to(dtype)
    bits = values.view(torch.int32 if dtype == torch.float32 else torch.int16).numpy()
    save(tmp_path, {"other": torch.ones(3), "x": values, "mask": torch.ones(2, dtype=torch.bool)})
    with Checkpoint(tmp_path, from_pickle=True) as checkpoint:
        tensor = checkpoint.tensors["x"]
        assert (tensor.name, tensor.shard) == ("x", "pytorch_model.bin")
        assert (tensor.dtype, tensor.shape, tensor.bytes) == (str(dtype)[6:], (37, 10), values.nbytes)
        np.testing.assert_array_equal(tensor.read_rows(16, 37).view(bits.dtype), bits[16:37])
        np.testing.assert_array_equal(tensor.read_columns(3, 9).view(bits.dtype), bits[:, 3:9])
        assert checkpoint.tensors["mask"].dtype == "BOOL"


def test_tensors_that_share_their_values(tmp_path: Path) -> None:
    """A tied table appears twice, and rows of a matrix are a part of it."""
    save(tmp_path, {"x": VALUES, "tied": VALUES, "rows": VALUES[5:9], "parameter": torch.nn.Parameter(VALUES)})
    with Checkpoint(tmp_path, from_pickle=True) as checkpoint:
        for name, expected in (("x", VALUES), ("tied", VALUES), ("rows", VALUES[5:9]), ("parameter", VALUES)):
            np.testing.assert_array_equal(values_of(checkpoint, name), expected)


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    names = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    for name, content in zip(names, ({"x": torch.ones(2)}, {"y": torch.zeros(3)}), strict=True):
        save(tmp_path, content, name)
    index = {"weight_map": {"x": names[0], "y": names[1]}}  # without metadata, as some are
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with Checkpoint(tmp_path, from_pickle=True) as checkpoint:
        assert {name: tensor.shard for name, tensor in checkpoint.tensors.items()} == index["weight_map"]
        assert values_of(checkpoint, "x").tolist() == [1, 1]
    (tmp_path / names[1]).unlink()
    assert names[1] in refused(tmp_path)


def test_pickles_are_read_only_where_they_are_asked_for(tmp_path: Path) -> None:
    save(tmp_path, {"x": torch.ones(2)})
    with pytest.raises(CheckpointError, match=r"pickled weights only, .*safetensors.*--from-pickle"):
        Checkpoint(tmp_path)
    save_file({"x": torch.zeros(2)}, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path, from_pickle=True) as checkpoint:
        assert values_of(checkpoint, "x").tolist() == [0, 0]


def test_opening_reads_the_list_and_no_tensor(tmp_path: Path) -> None:
    save(tmp_path, {"x": torch.zeros(1 << 23), "y": torch.ones(3)})

    def read_bytes() -> int:
        counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(counters["rchar"])

    with ExitStack() as files:
        open_pickle(tmp_path / "pytorch_model.bin", files)  # what torch imports the first time is read by now
        before = read_bytes()
        found = open_pickle(tmp_path / "pytorch_model.bin", files)
        assert read_bytes() - before < 1 << 20
        assert found["y"].read_rows(1, 3).tolist() == [1, 1]


class Call:
    """Whoever unpickles this calls a function."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("function", [os.mkdir, eval])
def test_code_is_named_and_not_run(tmp_path: Path, function: Any, nested: bool) -> None:
    proof = tmp_path / "proof"
    call = Call(function, str(proof) if function is os.mkdir else f"__import__('os').mkdir({str(proof)!r})")
    save(tmp_path, {"x": VALUES, "y": {"z": call}} if nested else call)
    assert f"{function.__module__}.{function.__name__}' to be called" in (line := refused(tmp_path))
    assert "weights_only" not in line
    assert not proof.exists()


def test_a_pickle_that_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Call(os.mkdir, str(tmp_path / "proof"))}))
    assert "not a zip archive" in refused(tmp_path)
    save(tmp_path, {"x": VALUES}, _use_new_zipfile_serialization=False)
    assert "torch 1.6" in refused(tmp_path)
    assert not (tmp_path / "proof").exists()


NO_WEIGHTS = {
    "a number": ({"x": VALUES, "epoch": 3}, "'epoch' is int, expected a tensor"),
    "more than a model": ({"state_dict": {"x": VALUES}}, "'state_dict' is dict, .*save its state_dict alone"),
    "a name that is a number": ({3: VALUES}, "3 is Tensor, expected a tensor with a name"),
    "a transposed view": ({"x": VALUES.T}, r"'x' is a view of other values.*\.contiguous\(\)"),
    "every second column": ({"x": VALUES[:, ::2]}, "'x' is a view"),
    "a negative view": ({"x": torch.view_as_complex(VALUES.view(37, 5, 2)).conj().imag}, "'x'"),
    "sparse": ({"x": VALUES.to_sparse()}, "'x' is torch.sparse_coo Tensor, expected a plain tensor"),
    "a list": ([VALUES], "got list, expected the tensors of a model by name"),
    "a tensor": (VALUES, "got Tensor"),
}


@pytest.mark.parametrize("kind", NO_WEIGHTS)
def test_entries_other_than_named_tensors_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    content, says = NO_WEIGHTS[kind]
    save(tmp_path, content)
    with pytest.raises(CheckpointError, match=says):
        Checkpoint(tmp_path, from_pickle=True)


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    path = save(tmp_path, {"x": VALUES, "y": VALUES + 1}) / "pytorch_model.bin"
    whole = path.read_bytes()
    for length in (0, 3, 40, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert "pytorch_model.bin" in refused(tmp_path)


def repack(path: Path, change: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """The same archive with other records, those whose names end as `change` says."""
    old = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
    with zipfile.ZipFile(path, "w", compression) as new:
        for name in old.namelist():
            content = next((content for end, content in change.items() if name.endswith(end)), old.read(name))
            new.writestr(name, content)


def test_archives_that_torch_does_not_write(tmp_path: Path) -> None:
    path = save(tmp_path, {"x": VALUES}) / "pytorch_model.bin"
    repack(path, {"/data/0": bytes(VALUES.nbytes - 4)})
    assert "'x': its values are not all in the file" in refused(tmp_path)
    repack(path, {"/data/0": bytes(VALUES.nbytes)})
    with Checkpoint(tmp_path, from_pickle=True) as checkpoint:
        assert not values_of(checkpoint, "x").any()
    repack(path, {"/data.pkl": b"\x80\x02."})
    assert "not the weights of a model" in refused(tmp_path)
    repack(path, {}, zipfile.ZIP_DEFLATED)
    assert "is compressed" in refused(tmp_path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/constants.pkl", b"")
    assert "is TorchScript" in refused(tmp_path)


def test_the_byte_order_of_other_machines(tmp_path: Path) -> None:
    path = save(tmp_path, {"x": VALUES}) / "pytorch_model.bin"
    repack(path, {"/byteorder": b"big"})
    assert "pytorch_model.bin" in refused(tmp_path)
