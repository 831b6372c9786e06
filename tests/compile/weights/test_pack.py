"""Streaming: pieces of any size give the bytes of the whole, and what cannot be packed is refused by name."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
import torch
from safetensors.torch import save_file

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.planning.layout import lay_out
from mxspec.compile.weights import pack
from mxspec.compile.weights.pack import PackedWeights, pack_weights
from mxspec.formats.errors import CheckpointError
from mxspec.formats.tiles import dequantize, quantize, unpack_values
from mxspec.formats.weight_format import WEIGHT_FORMATS

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def random(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (scale * torch.randn(*shape, generator=generator)).to(dtype)


def matrix(name: str, n: int, k: int, weight_format: str, *sources: str, transpose: bool = False) -> WeightSpec:
    return WeightSpec(name, "matmul", weight_format, (n, k), sources or (name,), transpose)


def stream(
    folder: Path, specs: list[WeightSpec], **tensors: torch.Tensor
) -> tuple[PackedWeights, dict[str, npt.NDArray[Any]], list[int]]:
    """Pack a checkpoint of these tensors; the table, what the reference library reads from the file, the progress."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    advances: list[int] = []
    with Checkpoint(folder) as checkpoint:
        layout = lay_out(specs)
        path = folder / "packed.safetensors"
        path.unlink(missing_ok=True)
        packed = pack_weights(specs, checkpoint.tensors, layout, path, advances.append)
    return packed, safetensors.numpy.load_file(path), advances


def oracle(values: torch.Tensor, weight_format: str) -> npt.NDArray[np.float32]:
    """What a matrix should have become, from the unpacked codec or torch's own rounding."""
    exact = values.float().numpy()
    if weight_format == "fp16_tiles":
        return values.float().half().float().numpy()
    element = WEIGHT_FORMATS[weight_format].element
    assert element
    return dequantize(*quantize(exact, element), element)


@pytest.fixture(params=[1, 700, 4 << 20], ids=["tile-by-tile", "some-tiles", "at-once"])
def piece_weights(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Sizes of a piece below, between and above those of the tensors."""
    monkeypatch.setattr(pack, "PIECE_WEIGHTS", request.param)
    return int(request.param)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight_format", WEIGHT_FORMATS)
def test_matrices(tmp_path: Path, piece_weights: int, weight_format: str, dtype: torch.dtype) -> None:
    straight, across = random(50, 40, dtype=dtype), random(33, 70, dtype=dtype)
    specs = [
        matrix("straight", 50, 40, weight_format),
        matrix("across", 70, 33, weight_format, transpose=True),
    ]
    packed, stored, advances = stream(tmp_path, specs, straight=straight, across=across)
    for entry, values in zip(packed.entries, [straight, across.T], strict=True):
        found = unpack_values(stored[entry.name], weight_format, *entry.shape)
        expected = oracle(values.contiguous(), weight_format)
        np.testing.assert_array_equal(found, expected)
        exact = values.double().numpy()
        error = np.sqrt(np.square(expected - exact).sum() / np.square(exact).sum())
        assert entry.error == pytest.approx(error, rel=1e-5, abs=1e-12)
        assert entry.underflowed == np.count_nonzero((expected == 0) & (exact != 0))
        assert (entry.sources, entry.source_bytes) == ((entry.name,), values.nbytes)
        assert entry.format == weight_format
    assert sum(advances) == straight.nbytes + across.nbytes


def test_stacked_projections(tmp_path: Path, piece_weights: int) -> None:
    q, k, v = random(32, 40), random(16, 40), random(9, 40)
    spec = matrix("qkv", 57, 40, "mxfp6_e3m2", "q", "k", "v")
    packed, stored, _ = stream(tmp_path, [spec], q=q, k=k, v=v)
    found = unpack_values(stored["qkv"], "mxfp6_e3m2", 57, 40)
    np.testing.assert_array_equal(found, oracle(torch.cat([q, k, v]), "mxfp6_e3m2"))
    assert packed.entries[0].sources == ("q", "k", "v")
    assert packed.entries[0].source_bytes == 57 * 40 * 4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embeddings_norms_and_constants(tmp_path: Path, piece_weights: int, dtype: torch.dtype) -> None:
    table, norm, bias = random(45, 30, dtype=dtype, scale=1e-3), random(31, dtype=dtype), random(5, dtype=dtype)
    cosines = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    specs = [
        WeightSpec("table", "embedding", "fp16", (45, 30), ("table",)),
        WeightSpec("norm", "float32", "float32", (36,), ("norm", "bias")),
        WeightSpec("cos", "constant", "float32", (3, 4), value=cosines),
        WeightSpec("steps", "constant", "int64", (), value=np.array(7)),
    ]
    packed, stored, _ = stream(tmp_path, specs, table=table, norm=norm, bias=bias)
    np.testing.assert_array_equal(stored["table"], table.float().half().numpy())
    np.testing.assert_array_equal(stored["norm"], torch.cat([norm, bias]).float().numpy())
    np.testing.assert_array_equal(stored["cos"], cosines)
    assert stored["steps"] == 7
    assert [entry.format for entry in packed.entries] == ["fp16", "float32", "float32", "int64"]
    assert [entry.error is None for entry in packed.entries] == [False, False, True, True]


def test_the_entry_has_the_tensors_place_and_the_files_hash(tmp_path: Path) -> None:
    packed, stored, _ = stream(
        tmp_path, [matrix("a", 5, 5, "fp16_tiles"), matrix("b", 5, 5, "mxfp6_e2m3")], a=random(5, 5), b=random(5, 5)
    )
    content = (tmp_path / "packed.safetensors").read_bytes()
    for entry in packed.entries:
        assert content[entry.offset : entry.offset + entry.bytes] == stored[entry.name].tobytes()
    assert packed.sha256 == hashlib.sha256(content).hexdigest()


def test_a_tied_head_is_stored_twice(tmp_path: Path) -> None:
    specs = [
        WeightSpec("embed", "embedding", "fp16", (48, 32), ("embed",)),
        matrix("lm_head", 48, 32, "mxfp6_e3m2", "embed"),
    ]
    embed = random(48, 32)
    _, stored, _ = stream(tmp_path, specs, embed=embed)
    np.testing.assert_array_equal(unpack_values(stored["lm_head"], "mxfp6_e3m2", 48, 32), oracle(embed, "mxfp6_e3m2"))
    np.testing.assert_array_equal(stored["embed"], embed.half().numpy())


KINDS = {
    "mxfp6": matrix("x", 20, 40, "mxfp6_e3m2"),
    "fp16 tiles": matrix("x", 20, 40, "fp16_tiles"),
    "embedding": WeightSpec("x", "embedding", "fp16", (20, 40), ("x",)),
    "float32": WeightSpec("x", "float32", "float32", (20, 40), ("x",)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_no_numbers(tmp_path: Path, piece_weights: int, kind: str, value: float) -> None:
    values = random(20, 40, dtype=torch.bfloat16)
    values[19, 39] = value
    with pytest.raises(CheckpointError, match=r"tensor 'x' of model\.safetensors holds NaN or infinity"):
        stream(tmp_path, [KINDS[kind]], x=values)


@pytest.mark.parametrize("kind", ["fp16 tiles", "embedding"])
def test_values_beyond_fp16(tmp_path: Path, kind: str) -> None:
    values = random(20, 40, dtype=torch.bfloat16)
    values[3, 3] = -65536.0
    with pytest.raises(CheckpointError, match=r"tensor 'x' .* holds values beyond 65504"):
        stream(tmp_path, [KINDS[kind]], x=values)
    stream(tmp_path, [KINDS["mxfp6"]], x=values)


@pytest.mark.parametrize("kind", ["fp16 tiles", "embedding"])
def test_the_largest_fp16_and_underflow(tmp_path: Path, kind: str) -> None:
    values = random(20, 40)
    values[0, :4] = torch.tensor([65504.0, 1e-9, -1e-9, 0.0])
    packed, _, _ = stream(tmp_path, [KINDS[kind]], x=values)
    assert packed.entries[0].underflowed == 2
