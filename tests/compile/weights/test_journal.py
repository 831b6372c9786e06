"""Packing that was killed goes on at its tensor, and gives the bytes of a run in one piece."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.planning.layout import lay_out
from mxspec.compile.weights.journal import Journal
from mxspec.compile.weights.pack import PackedWeights, pack_weights
from mxspec.formats.safetensors_file import SafetensorsWriter

NAMES = ("a", "b", "c", "d")
SPECS = [WeightSpec(name, "matmul", "mxfp6_e3m2", (50, 40), (name,)) for name in NAMES]
SOURCE_BYTES = 50 * 40 * 4


class Killed(BaseException):
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    save_file({name: torch.randn(50, 40, generator=generator) for name in NAMES}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


def pack(folder: Path, specs: list[WeightSpec] = SPECS) -> tuple[PackedWeights, bytes, int]:
    """What was packed, the bytes of the file, and how much of the checkpoint was called done."""
    done: list[int] = []
    path = folder / "packed.safetensors"
    with Checkpoint(folder) as checkpoint:
        layout = lay_out(specs)
        packed = pack_weights(specs, checkpoint.tensors, layout, path, done.append, journal=folder / "packed.journal")
    return packed, path.read_bytes(), sum(done)


@pytest.fixture
def whole(folder: Path) -> tuple[PackedWeights, bytes]:
    """Of a run in one piece; nothing of it is left."""
    packed, content, done = pack(folder)
    assert (packed.taken_over, done) == (0, len(NAMES) * SOURCE_BYTES)
    (folder / "packed.safetensors").unlink()
    (folder / "packed.journal").unlink()
    return packed, content


@pytest.fixture
def killed_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Packs until the bytes of a tensor are being written."""

    def run(name: str) -> None:
        begin = SafetensorsWriter.begin

        def stop(writer: SafetensorsWriter, tensor: str) -> None:
            begin(writer, tensor)
            if tensor == name:
                writer.append(b"half")
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(SafetensorsWriter, "begin", stop)
            with pytest.raises(Killed):
                pack(folder)

    return run


@pytest.mark.parametrize("name", NAMES)
def test_a_second_run_resumes_at_the_tensor(
    folder: Path, whole: tuple[PackedWeights, bytes], killed_at: Callable[[str], None], name: str
) -> None:
    killed_at(name)
    packed, content, done = pack(folder)
    assert packed.taken_over == NAMES.index(name)
    assert content == whole[1]
    assert replace(packed, taken_over=0) == whole[0]
    assert done == len(NAMES) * SOURCE_BYTES


def test_it_can_be_killed_again_and_again(
    folder: Path, whole: tuple[PackedWeights, bytes], killed_at: Callable[[str], None]
) -> None:
    for name in ("b", "b", "c", "d"):
        killed_at(name)
    packed, content, _ = pack(folder)
    assert (packed.taken_over, content) == (3, whole[1])


def test_a_finished_file_is_taken_over_whole(folder: Path, whole: tuple[PackedWeights, bytes]) -> None:
    """As after a kill while the next model was packed."""
    pack(folder)
    packed, content, _ = pack(folder)
    assert (packed.taken_over, content, packed.sha256) == (len(NAMES), whole[1], whole[0].sha256)


def test_a_damaged_tensor_is_packed_again(
    folder: Path, whole: tuple[PackedWeights, bytes], killed_at: Callable[[str], None]
) -> None:
    killed_at("d")
    content = bytearray((folder / "packed.safetensors").read_bytes())
    content[whole[0].entries[1].offset] ^= 1
    (folder / "packed.safetensors").write_bytes(content)
    packed, mended, _ = pack(folder)
    assert (packed.taken_over, mended) == (1, whole[1])


def test_other_work_is_not_taken_over(folder: Path, killed_at: Callable[[str], None]) -> None:
    killed_at("d")
    assert pack(folder, [replace(spec, format="mxfp6_e2m3") for spec in SPECS])[0].taken_over == 0
    (folder / "packed.safetensors").unlink()
    (folder / "packed.journal").unlink()
    killed_at("d")
    os.utime(folder / "model.safetensors", ns=(0, 0))  # another checkpoint, as far as one can see without reading it
    assert pack(folder)[0].taken_over == 0


@pytest.mark.parametrize("cut", [0, 10, -1, -30])
def test_a_journal_cut_anywhere(
    folder: Path, whole: tuple[PackedWeights, bytes], killed_at: Callable[[str], None], cut: int
) -> None:
    killed_at("c")
    journal = folder / "packed.journal"
    journal.write_bytes(journal.read_bytes()[:cut])
    packed, content, _ = pack(folder)
    assert (packed.taken_over, content) == (1 if cut < 0 else 0, whole[1])


@pytest.mark.parametrize("content", [b"", b"\xff\n", b"{}\n{}\n", b"\n\n\n"])
def test_a_strange_journal_counts_for_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.journal").write_bytes(content)
    with Journal(tmp_path / "x.journal", "{}") as journal:
        assert journal.finished == []


def test_a_file_without_a_journal_is_replaced(folder: Path, whole: tuple[PackedWeights, bytes]) -> None:
    (folder / "packed.safetensors").write_bytes(b"of somebody")
    assert pack(folder)[1] == whole[1]
