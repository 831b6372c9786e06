"""A file that torch.save wrote: the list of its tensors by torch's weights-only loader, their bytes by pread.

    a zip archive, nothing in it compressed:
    NAME/data.pkl      names, types, shapes and strides, and of each tensor which record it is a part of
    NAME/data/0, ...   the records: bytes of a tensor, or of several that share them

With the meta device, the loader runs no code of the file, reads no record, and says where each record begins. So a
tensor is a range of the file, as in safetensors, and is read only when it is needed.
Format: torch/serialization.py, torch 2.6 and later.
"""

from __future__ import annotations

import math
import re
import struct
import warnings
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import torch

from mxspec.compile.checkpoint.settings.config import one_line
from mxspec.compile.checkpoint.tensors.tensor import CheckpointTensor, hold_open
from mxspec.formats.errors import CheckpointError
from mxspec.formats.safetensors_file import StoredTensor
from mxspec.formats.validation import shorten

_ZIP = b"PK\x03\x04"
_LOCAL_HEADER = 30  # bytes, and then the name and the extra field, whose lengths are its last two numbers
_DTYPES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.bool: "BOOL",
    torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


def open_pickle(path: Path, files: ExitStack) -> dict[str, CheckpointTensor]:
    """The tensors of a file of torch.save, which is open until `files` ends.

    Raises CheckpointError for a damaged file, one that would run code, and entries other than named tensors.
    """
    descriptor = hold_open(path, files)
    records = _records(path)
    _refuse_calls(path)
    with warnings.catch_warnings(action="ignore"):  # warnings about an unusual protocol
        try:
            found = torch.load(path, map_location="meta", weights_only=True)
        except Exception as error:  # the loader raises various errors for a damaged list
            raise CheckpointError(f"{path.name}: not the weights of a model ({_reason(error)})") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path.name}: got {type(found).__name__}, expected the tensors of a model by name")
    return {name: CheckpointTensor(_place(name, found[name], records, path), descriptor, path.name) for name in found}


def _records(path: Path) -> dict[int, int]:
    """The bytes of each record by its place in the file. Raises CheckpointError for what torch.save does not write."""
    where = path.name
    try:
        with path.open("rb") as file:
            if file.read(len(_ZIP)) != _ZIP:
                raise CheckpointError(
                    f"{where}: not a zip archive, as torch.save has written since torch 1.6: it is damaged, or older: "
                    "load it with torch where you trust it, and save it again"
                )
            archive = zipfile.ZipFile(file)
            _check_archive(archive, where)
            return {_data_offset(file, entry): entry.file_size for entry in archive.infolist()}
    except CheckpointError:
        raise
    except Exception as error:  # zipfile's errors have no common base
        raise CheckpointError(f"{where}: cut short or damaged ({one_line(error)})") from None


def _check_archive(archive: zipfile.ZipFile, where: str) -> None:
    """Raise CheckpointError for another kind of archive, or one that would crash the loader."""
    names = set()
    for entry in archive.infolist():
        leaf = entry.filename.rpartition("/")[2]
        if leaf == "constants.pkl":
            raise CheckpointError(f"{where}: is TorchScript, a program; expected a model's weights")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise CheckpointError(f"{where}: {shorten(entry.filename)} is compressed, unlike torch.save's")
        if entry.filename in names:
            raise CheckpointError(f"{where}: {shorten(entry.filename)} appears twice")
        if leaf == "byteorder" and archive.read(entry) != b"little":  # swapping bytes on the meta device crashes
            raise CheckpointError(
                f"{where}: was written on a machine with another byte order; save it again on this one"
            )
        names.add(entry.filename)


def _data_offset(file: IO[bytes], entry: zipfile.ZipInfo) -> int:
    file.seek(entry.header_offset + _LOCAL_HEADER - 4)
    name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
    return entry.header_offset + _LOCAL_HEADER + int(name_bytes) + int(extra_bytes)


def _refuse_calls(path: Path) -> None:
    """Raise CheckpointError for functions that weights do not need, and for a list that cannot be parsed.

    The loader also refuses them, but its message advises loading the file anyway, and a long name takes it minutes.
    """
    try:
        strange = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(str(path)))
    except Exception as error:  # parsing raises various errors
        raise CheckpointError(f"{path.name}: not the weights of a model ({one_line(error)})") from None
    if strange:
        raise CheckpointError(
            f"{path.name}: wants {shorten(strange[0])} to be called, which is code, not a weight; nothing was run: "
            "do not trust this file"
        )


def _reason(error: Exception) -> str:
    """The loader's message, without its advice."""
    said = re.search(r"WeightsUnpickler error:\s*([^\n]{1,200})", str(error))
    return one_line(error) if said is None else said[1]


def _place(name: Any, value: Any, records: dict[int, int], path: Path) -> StoredTensor:
    """The place of a tensor in the file."""
    where = f"{path.name}: {shorten(name)}"
    if not isinstance(name, str) or not isinstance(value, torch.Tensor):
        nested = "; it holds more than a model: save its state_dict alone" if isinstance(value, dict) else ""
        raise CheckpointError(f"{where} is {type(value).__name__}, expected a tensor with a name{nested}")
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided or value.is_quantized:
        raise CheckpointError(f"{where} is {value.layout} {type(value).__name__}, expected a plain tensor")
    if not value.is_contiguous() or value.is_conj() or value.is_neg():
        raise CheckpointError(f"{where} is a view of other values: save it again after .contiguous()")
    dtype = _DTYPES.get(value.dtype, str(value.dtype))
    begin: int | None = getattr(value.untyped_storage(), "_checkpoint_offset", None)
    skipped, size = int(value.storage_offset()) * value.itemsize, math.prod(value.shape) * value.itemsize
    if size and (begin not in records or skipped + size > records[begin]):
        raise CheckpointError(f"{where}: its values are not all in the file, which is damaged")
    return StoredTensor(name, dtype, tuple(value.shape), (begin or 0) + skipped, size)
