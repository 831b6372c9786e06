"""What a file or a folder is, by its first bytes: for errors about one that was given in the place of another."""

from __future__ import annotations

from pathlib import Path

GGUF_MAGIC = b"GGUF"
_POINTER = b"version https://git-lfs"
POINTER = "it is a git-lfs pointer, and not the file itself: fetch that with `git lfs pull`"
_HEADER_LIMIT = 100 << 20  # bytes of a safetensors header


def is_gguf(path: Path) -> bool:
    """Whether a file begins as a GGUF file does."""
    return _beginning(path)[: len(GGUF_MAGIC)] == GGUF_MAGIC


def is_pointer(path: Path) -> bool:
    """Whether a file only says where git-lfs has the real one."""
    return _beginning(path).startswith(_POINTER)


def what_it_is(path: Path) -> str | None:
    """What a path is and what takes it, as a clause of an error; None where nothing is known of it."""
    if path.is_dir():
        if (path / "manifest.json").is_file():
            return "it is a bundle, which is compiled already: run it with specrun"
        if (path / "config.json").is_file():
            return "it is a checkpoint: compile it with speccompile"
        return None
    begin = _beginning(path)
    if begin.startswith(GGUF_MAGIC):
        return "it is a GGUF file: compile it with speccompile"
    if begin.startswith(_POINTER):
        return POINTER
    if 2 <= int.from_bytes(begin[:8], "little") <= _HEADER_LIMIT and begin[8:9] == b"{":
        return "it is a lone safetensors file: give the folder that holds it, with config.json and a tokenizer"
    if begin.startswith(b"PK\x03\x04"):
        return "it is an archive, maybe pickled weights: give the folder of the checkpoint, with --from-pickle"
    return None


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError:
        return b""
