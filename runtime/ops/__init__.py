"""The ONNX Runtime custom-op library: its path, for `SessionOptions.register_custom_ops_library`, and its threads.

All sessions of a process share the operators' one thread pool; give ONNX Runtime's own one thread
(`SessionOptions.intra_op_num_threads = 1`), so that its idle threads do not spin on the cores that ours work on.
"""

import ctypes
import platform
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from mxspec.formats.errors import MxspecError

CPUINFO = Path("/proc/cpuinfo")
_MOST_THREADS = 2**31 - 1  # a larger count does not fit the C function's int


def library_path() -> Path:
    """Path of the built operator library. Raises MxspecError where the installation lacks it."""
    # Through the package's resources: in an editable install the library lies in site-packages, not beside this file.
    library = files("mxspec.runtime.ops").joinpath("libmxspec_ops.so")
    path = Path(str(library))
    if not path.is_file():
        raise MxspecError(f"operator library {path}: is missing; install mxspec again, with a C++ compiler")
    return path


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path()))
    library.mxspec_set_threads.argtypes = (ctypes.c_size_t,)
    library.mxspec_set_threads.restype = ctypes.c_bool
    library.mxspec_threads.restype = ctypes.c_size_t
    library.mxspec_isa.restype = ctypes.c_char_p
    library.mxspec_available_isas.restype = ctypes.c_char_p
    library.mxspec_experts_counts.argtypes = (ctypes.POINTER(ctypes.c_uint64),) * 3
    library.mxspec_experts_counts.restype = None
    return library


def set_threads(count: int) -> None:
    """Set the number of threads, the calling one included, of this process's operators; no result changes.

    Raises MxspecError where the system does not give that many; the operators then keep the threads they had.
    """
    assert count >= 1
    if count > _MOST_THREADS or not _library().mxspec_set_threads(count):
        raise MxspecError(
            f"threads: got {count}, more than the system gives (limits of memory or processes); "
            f"working on {threads()}, ask for at most the number of cores"
        )


def threads() -> int:
    """Number of threads of this process's operators: at first one for each core that it may use."""
    return int(_library().mxspec_threads())


def instruction_set() -> str | None:
    """The operators' instruction set: MXSPEC_ISA's, or the best one; None if the machine lacks MXSPEC_ISA's."""
    name: bytes | None = _library().mxspec_isa()
    return name.decode() if name else None


@cache
def available_isas() -> tuple[str, ...]:
    """The instruction sets that this machine has, the slowest first: values of MXSPEC_ISA."""
    names: bytes = _library().mxspec_available_isas()
    return tuple(names.decode().split())


@dataclass(frozen=True, slots=True)
class ExpertsCounts:
    """Calls of PackedExperts, their rows, and their experts: the distinct ones of each call, added up."""

    calls: int
    rows: int
    experts: int

    def __sub__(self, before: "ExpertsCounts") -> "ExpertsCounts":
        return ExpertsCounts(self.calls - before.calls, self.rows - before.rows, self.experts - before.experts)


def experts_counts() -> ExpertsCounts:
    """What this process has counted so far; the difference of two says what the calls between them touched."""
    counts = [ctypes.c_uint64() for _ in range(3)]
    _library().mxspec_experts_counts(*counts)
    return ExpertsCounts(*(count.value for count in counts))


def processor_name() -> str:
    """The system's name of its first core, or Python's where the system has no name."""
    try:
        with CPUINFO.open() as lines:  # of every core: no more is read than the first name
            for line in lines:
                if "model name" in line:
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()
