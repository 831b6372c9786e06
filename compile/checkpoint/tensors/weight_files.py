"""Find the files with a checkpoint's weights, in transformers' order, and notice when one changes.

Pickles are read only with `from_pickle`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mxspec.compile.checkpoint.tensors.tensor import identity_of
from mxspec.formats.errors import CheckpointError
from mxspec.formats.manifest import PLAIN_NAME
from mxspec.formats.validation import parse_json, shorten

PICKLES_ADVICE = (
    "pickled weights only, and a pickle can carry code: take a revision that has safetensors, or let transformers save "
    "it again where you trust it; --from-pickle reads it by torch's weights-only loader, which runs no code"
)


@dataclass(frozen=True, slots=True)
class WeightKind:
    """The names of files of a kind: a single file with all weights, or the index of several."""

    single: str
    index: str
    pickled: bool = False


SAFETENSORS = WeightKind("model.safetensors", "model.safetensors.index.json")
PICKLES = WeightKind("pytorch_model.bin", "pytorch_model.bin.index.json", pickled=True)


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Files of a checkpoint, with the tensors of each by the index."""

    promised: dict[str, set[str]]
    kind: WeightKind


def kinds_to_read(from_pickle: bool) -> tuple[WeightKind, ...]:
    """Safetensors first, as in transformers, then pickles if allowed."""
    return (SAFETENSORS, PICKLES) if from_pickle else (SAFETENSORS,)


def find_weights(folder: Path, from_pickle: bool) -> WeightFiles:
    """The files to read; a single file is preferred to an index, as in transformers. Raises CheckpointError if none."""
    for kind in kinds_to_read(from_pickle):
        if (folder / kind.single).is_file():
            return WeightFiles({kind.single: set()}, kind)
        if (folder / kind.index).is_file():
            return WeightFiles(read_index(folder / kind.index), kind)
    raise CheckpointError(f"{folder}: {_what_is_there(folder)}")


def _what_is_there(folder: Path) -> str:
    if any((folder / name).is_file() for name in (PICKLES.single, PICKLES.index)):
        return PICKLES_ADVICE
    other = next((path.name for pattern in ("*.bin", "*.pt*") for path in sorted(folder.glob(pattern))), None)
    hint = "" if other is None else f"; {other} is of another kind: let transformers save the model anew"
    return f"neither {SAFETENSORS.single} nor {SAFETENSORS.index}{hint}"


def read_index(path: Path) -> dict[str, set[str]]:
    """The tensors of each shard in an index. Raises CheckpointError for an invalid index."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    match parse_json(text, str(path), CheckpointError):
        case {"weight_map": dict(weight_map)} if weight_map:
            return _by_shard(weight_map.items(), path)
        case _:
            raise CheckpointError(f"{path}: no weight_map")


def _by_shard(weight_map: Iterable[tuple[str, object]], path: Path) -> dict[str, set[str]]:
    shards: dict[str, set[str]] = {}
    for name, shard in weight_map:
        if not isinstance(shard, str) or not PLAIN_NAME.fullmatch(shard):
            raise CheckpointError(f"{path}: shard {shorten(shard)} of tensor {shorten(name)} is not a plain file name")
        shards.setdefault(shard, set()).add(name)
    return shards


class Watch:
    """Device, file, size and time of the last change of each file that was added; None for one that is missing."""

    def __init__(self) -> None:
        self._before: dict[Path, tuple[int, ...] | None] = {}

    def add(self, paths: Iterable[Path]) -> None:
        """Keep what these files are now: to be called before they are read."""
        self._before |= {path: _state(path) for path in paths}

    def require_unchanged(self) -> None:
        """Raise CheckpointError for the first file that was changed, removed or added."""
        for path, before in self._before.items():
            now = _state(path)
            if now != before:
                what = "appeared" if before is None else "was removed" if now is None else "was changed"
                raise CheckpointError(f"{path}: {what} while it was compiled, so no bundle was written: try again")


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        return identity_of(path)
    except OSError:
        return None
