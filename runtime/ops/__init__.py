"""The ONNX Runtime custom-op library: where it lies, for `SessionOptions.register_custom_ops_library`, and its threads.

All sessions of a process share the operators' one thread pool; give ONNX Runtime's own one thread
(`SessionOptions.intra_op_num_threads = 1`), so that its idle threads do not spin on the cores that ours work on.
"""

import ctypes
from functools import cache
from importlib.resources import files
from pathlib import Path

from mxspec.formats.errors import MxspecError

__all__ = ["available_isas", "instruction_set", "library_path", "set_threads", "threads"]


_MOST_THREADS = 2**31 - 1  # a larger count would be cut off on its way


def library_path() -> Path:
    """Path of the built operator library. Raises MxspecError where the installation lacks it."""
    # Through the package's resources: in an editable install the library lies in site-packages, not beside this file.
    library = files("mxspec.runtime.ops").joinpath("libmxspec_ops.so")
    path = Path(str(library))
    if not path.is_file():
        raise MxspecError(f"operator library {path}: not there; install mxspec again, with a C++ compiler at hand")
    return path


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path()))
    library.mxspec_set_threads.argtypes = (ctypes.c_size_t,)
    library.mxspec_set_threads.restype = ctypes.c_bool
    library.mxspec_threads.restype = ctypes.c_size_t
    library.mxspec_isa.restype = ctypes.c_char_p
    library.mxspec_available_isas.restype = ctypes.c_char_p
    return library


def set_threads(count: int) -> None:
    """Set how many threads, the calling one included, the operators of this process work on; no result changes.

    Raises MxspecError where the system does not give so many; the operators then work on those they had.
    """
    assert count >= 1
    if count > _MOST_THREADS or not _library().mxspec_set_threads(count):
        raise MxspecError(
            f"threads: got {count}, more than the system gives (limits of memory or processes); "
            f"working on {threads()}, ask for at most the number of cores"
        )


def threads() -> int:
    """How many threads the operators of this process work on: at first all cores that it may use."""
    return int(_library().mxspec_threads())


def instruction_set() -> str | None:
    """The instruction set of the operators of this process: MXSPEC_ISA's, or the best one; None where it has none."""
    name: bytes | None = _library().mxspec_isa()
    return name.decode() if name else None


@cache
def available_isas() -> tuple[str, ...]:
    """The instruction sets that this machine has, the slowest first: values of MXSPEC_ISA."""
    names: bytes = _library().mxspec_available_isas()
    return tuple(names.decode().split())
