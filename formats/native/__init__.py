"""The codec library through ctypes. codec.h says what each call does; the callers here have checked their arrays."""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
import os
from typing import Any

from mxspec.formats.errors import MxspecError
from mxspec.formats.weight_format import format_of_element

LIBRARY = "libmxspec_codec.so"
ROUNDINGS = {"even": 0, "away": 1}
ISAS = ("scalar", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512vbmi", "amx", "neon", "neondot")
"""The values of MXSPEC_ISA (isa.cpp); of those that a machine has, slowest first."""
TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}

_ISA_STATUSES = {7, 8}
_NO_MEMORY = 9

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class Matrix(ctypes.Structure):
    """mxspec_matrix."""

    _fields_ = (
        ("data", _pointer),
        ("n", _int64),
        ("k", _int64),
        ("stride", _int64),
        ("type", _int32),
        ("transposed", _int32),
    )


class PackingStatistics(ctypes.Structure):
    """mxspec_statistics."""

    _fields_ = (
        ("squared_error", ctypes.c_double),
        ("squared_norm", ctypes.c_double),
        ("nonfinite", _int64),
        ("overflow", _int64),
        ("underflow", _int64),
    )


_matrix, _statistics = ctypes.POINTER(Matrix), ctypes.POINTER(PackingStatistics)
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "quantize": (_matrix, _int32, _int32, _int32, _pointer, _pointer),
    "dequantize": (_pointer, _pointer, _int64, _int64, _int32, _pointer),
    "pack": (_pointer, _pointer, _int64, _int64, _int32, _pointer),
    "unpack": (_pointer, _int64, _int64, _int32, _pointer, _pointer),
    "quantize_pack": (_matrix, _int64, _int64, _int32, _int32, _int32, _pointer, _int64, _statistics),
    "pack_fp16": (_matrix, _int64, _int64, _int32, _pointer, _int64, _statistics),
    "unpack_fp16": (_pointer, _int64, _int64, _pointer),
}


@functools.cache
def _library() -> ctypes.CDLL:
    path = importlib.resources.files("mxspec.formats.native").joinpath(LIBRARY)
    if not path.is_file():
        raise MxspecError(f"{LIBRARY} is missing from mxspec.formats.native: install mxspec with pip, which builds it")
    with importlib.resources.as_file(path) as file:
        library = ctypes.CDLL(os.fspath(file))
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, f"mxspec_{name}")
        function.argtypes, function.restype = arguments, _int32
    library.mxspec_status_text.argtypes, library.mxspec_status_text.restype = (_int32,), ctypes.c_char_p
    library.mxspec_codec_isa.argtypes, library.mxspec_codec_isa.restype = (ctypes.c_char_p,), ctypes.c_char_p
    return library


def call(name: str, *arguments: object) -> None:
    """Call mxspec_<name>. Raises MxspecError where MXSPEC_ISA cannot be followed, MemoryError, or ValueError."""
    status: int = getattr(_library(), f"mxspec_{name}")(*arguments)
    if status == 0:
        return
    text = _library().mxspec_status_text(status).decode()
    if status in _ISA_STATUSES:
        raise MxspecError(f"{text} (MXSPEC_ISA={os.environ.get('MXSPEC_ISA', '')})")
    if status == _NO_MEMORY:
        raise MemoryError(f"{name}: {text}")
    raise ValueError(f"{name}: {text}")


def element_number(element: str) -> int:
    """The number that the codec knows an element by. Raises ValueError naming the elements there are."""
    return format_of_element(element).native_id - 1


def available_isas() -> list[str]:
    """The instruction sets of this machine that the codec has code of its own for, the narrowest first."""
    return [isa for isa in ISAS if _library().mxspec_codec_isa(isa.encode()) == isa.encode()]
