"""The header of a GGUF file: what is damaged or asks for too much is refused in one line, before memory is taken."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from mxspec.compile.checkpoint.gguf.container import read_container
from mxspec.formats.errors import CheckpointError, UnsupportedModelError

F32, Q4_0, NVFP4 = 0, 2, 40


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, sizes: Sequence[int], kind: int = F32, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def file_of(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: int = 0,
    *,
    counts: tuple[int, int] | None = None,
    magic: bytes = b"GGUF",
    version: bytes = b"\3\0\0\0",
) -> bytes:
    header = magic + version + struct.pack("<QQ", *(counts or (len(tensors), len(keys)))) + b"".join([*keys, *tensors])
    return header + bytes(-len(header) % 32) + bytes(data)


def test_a_file_of_the_packages_writer(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_array("scores", [0.5, -1.0])
    writer.add_array("tokens", ["a", "é"])
    writer.add_bool("yes", True)
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("x", values)
    writer.add_tensor("y", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_container(path)
    assert found.keys["general.architecture"] == "llama"
    assert found.keys["tokens"] == ["a", "é"]
    assert found.keys["yes"] is True
    assert found.keys["scores"].tolist() == [0.5, -1.0]
    assert found.tensors["x"].shape == (3, 4)
    data = path.read_bytes()[found.tensors["x"].offset :][: found.tensors["x"].bytes]
    assert np.array_equal(np.frombuffer(data, "<f4").reshape(3, 4), values)


HUGE = 1 << 62
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cut short"),
    "another magic": (file_of(magic=b"GGML"), "does not begin with 'GGUF'"),
    "version 1": (file_of(version=b"\1\0\0\0"), "version 1, expected 2 or 3"),
    "big endian": (file_of(version=b"\0\0\0\3"), "big endian"),
    "many keys": (file_of(counts=(0, HUGE)), "the file is damaged"),
    "many tensors": (file_of(counts=(HUGE, 0)), "the file is damaged"),
    "fewer keys than it says": (file_of(counts=(0, 3)), "cut short"),
    "a long name": (file_of([struct.pack("<Q", HUGE)], counts=(0, 1)), "expected at most 1024"),
    "a name that is no text": (file_of([key("", 0, b"\0")[:8] + b""], counts=(0, 1)), "cut short"),
    "a key twice": (file_of([key("a", 0, b"\0"), key("a", 0, b"\0")]), "'a' appears twice"),
    "an unknown kind": (file_of([key("a", 13, b"\0")]), "kind 13, expected 0 to 12"),
    "a long text": (file_of([key("a", 8, struct.pack("<Q", HUGE))]), "expected at most"),
    "not UTF-8": (file_of([key("a", 8, text(b"\xff\xfe"))]), "not UTF-8"),
    "a long array": (file_of([key("a", 9, struct.pack("<IQ", 4, HUGE))]), "entries, expected at most"),
    "an array beyond the end": (file_of([key("a", 9, struct.pack("<IQ", 4, 1 << 20))]), "cut short"),
    "texts beyond the end": (file_of([key("a", 9, struct.pack("<IQ", 8, 1 << 20))]), "cut short"),
    "an array of arrays": (file_of([key("a", 9, struct.pack("<IQ", 9, 1))]), "expected numbers or text"),
    "a long entry": (file_of([key("a", 9, struct.pack("<IQQ", 8, 1, HUGE))], data=64), "expected at most 1024"),
    "alignment 3": (file_of([key("general.alignment", 4, b"\3\0\0\0")]), "expected a power of two"),
    "alignment 0": (file_of([key("general.alignment", 4, b"\0\0\0\0")]), "expected a power of two"),
    "no dimensions": (file_of((), [tensor("t", [])]), "0 dimensions"),
    "five dimensions": (file_of((), [tensor("t", [1] * 5)]), "5 dimensions"),
    "a size of 0": (file_of((), [tensor("t", [4, 0])]), "expected positive ones"),
    "sizes that overflow": (file_of((), [tensor("t", [1 << 39, 1 << 39])]), "that a file can hold"),
    "a tensor beyond the end": (file_of((), [tensor("t", [4, 4])], data=32), "cut short"),
    "an offset beyond the end": (file_of((), [tensor("t", [4], offset=HUGE)], data=32), "cut short"),
    "an odd offset": (file_of((), [tensor("t", [4], offset=8)], data=64), "expected a multiple of 32"),
    "an overlap": (file_of((), [tensor("t", [16]), tensor("u", [16], offset=32)], data=128), "overlaps tensor 't'"),
    "a tensor twice": (file_of((), [tensor("t", [8]), tensor("t", [8], offset=32)], data=64), "'t' appears twice"),
    "part of a block": (file_of((), [tensor("t", [33], Q4_0)], data=64), "expected a multiple of 32 (Q4_0)"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    data, message = DAMAGED[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        read_container(path)
    said = str(caught.value)
    assert message in said
    assert said.startswith(str(path))
    assert "\n" not in said


@pytest.mark.parametrize(("kind", "named"), [(NVFP4, "NVFP4"), (34, "TQ1_0"), (16, "IQ2_XXS"), (99, "unknown type 99")])
def test_types_that_are_not_supported_are_named(tmp_path: Path, kind: int, named: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(file_of((), [tensor("t", [256], kind)], data=1024))
    with pytest.raises(UnsupportedModelError, match=f"'t' is .*{named}.*not supported"):
        read_container(path)


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    whole = file_of(
        [key("a", 4, b"\1\0\0\0"), key("b", 8, text("xy")), key("c", 9, struct.pack("<IQ", 8, 1) + text("z"))],
        [tensor("t", [8])],
        data=32,
    )
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    assert read_container(path).tensors["t"].bytes == 32
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(CheckpointError):
            read_container(path)


def test_any_changed_byte_gives_an_error_or_a_header(tmp_path: Path) -> None:
    rng: Any = np.random.default_rng(0)
    whole = bytearray(
        file_of(
            [key("a", 4, b"\1\0\0\0"), key("c", 9, struct.pack("<IQ", 8, 1) + text("z"))], [tensor("t", [8])], data=32
        )
    )
    path, said = tmp_path / "model.gguf", []
    for _ in range(2000):
        changed = bytearray(whole)
        for place in rng.integers(0, len(whole), rng.integers(1, 4)):
            changed[place] = rng.integers(0, 256)
        path.write_bytes(changed)
        try:
            read_container(path)
        except (CheckpointError, UnsupportedModelError) as error:
            said.append(str(error))
    assert len(said) > 1000
    assert not any("\n" in message for message in said)
