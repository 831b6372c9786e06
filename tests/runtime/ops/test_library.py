"""The operator library: found, loaded by ONNX Runtime, and clear about a runtime that it cannot work with."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort
import pytest

from mxspec.formats.errors import MxspecError
from mxspec.runtime import ops

GetApi = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
GetVersionString = ctypes.CFUNCTYPE(ctypes.c_void_p)
CreateStatus = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)


class OrtApiBase(ctypes.Structure):
    _fields_ = (("get_api", GetApi), ("get_version_string", GetVersionString))


def test_library_registers() -> None:
    assert ops.library_path().is_file()
    ort.SessionOptions().register_custom_ops_library(str(ops.library_path()))


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the names that Linux gives x86-64's extensions")
def test_instruction_sets_are_those_that_linux_names() -> None:
    found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    assert found is not None
    flags = set(found[1].split())
    needed = {"scalar": set[str](), "avx2": {"avx2", "fma", "f16c"}}
    needed["avx512"] = needed["avx2"] | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
    needed["avx512vnni"] = needed["avx512"] | {"avx512_vnni"}
    needed["avx512vbmi"] = needed["avx512vnni"] | {"avx512vbmi"}
    needed["amx"] = needed["avx512vbmi"] | {"amx_tile", "amx_int8"}
    expected = {isa for isa, extensions in needed.items() if extensions <= flags}
    if needed["avx2"] | {"avx_vnni"} <= flags or "avx512vnni" in expected:
        expected.add("avxvnni")
    assert set(ops.available_isas()) == expected


def test_missing_library_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "files", lambda _: tmp_path)
    with pytest.raises(MxspecError, match=r"libmxspec_ops\.so: is missing; install mxspec again"):
        ops.library_path()


def test_older_runtime_is_a_clear_error() -> None:
    """A runtime that answers GetApi(18) with nothing gets a status made through its oldest table."""
    statuses: list[tuple[int, bytes]] = []

    def create_status(code: int, message: bytes) -> int:
        statuses.append((code, message))
        return 1234

    version_string = ctypes.create_string_buffer(b"1.17.3")
    table = (ctypes.c_void_p * 1)(ctypes.cast(create := CreateStatus(create_status), ctypes.c_void_p))
    base = OrtApiBase(
        GetApi(lambda version: ctypes.addressof(table) if version <= 17 else None),
        GetVersionString(lambda: ctypes.addressof(version_string)),
    )
    library = ctypes.CDLL(str(ops.library_path()))
    library.RegisterCustomOps.restype = ctypes.c_void_p
    assert library.RegisterCustomOps(None, ctypes.byref(base)) == 1234
    assert statuses == [(1, b"mxspec: this ONNX Runtime is version 1.17.3, the operators need 1.18 or later")]
    assert create is not None  # kept until here


def test_nothing_else_is_exported() -> None:
    """Symbols of ours must not be taken for those of another library in the process."""
    if shutil.which("nm") is None:
        pytest.skip("no nm to read the library with")
    command = ["nm", "-D", "--defined-only", str(ops.library_path())]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in result.stdout.splitlines()}
    assert "RegisterCustomOps" in names
    assert not {name for name in names if "mxspec" in name and not name.startswith("mxspec_")}


def test_threads_can_be_set() -> None:
    program = "from mxspec.runtime import ops; ops.set_threads(3); assert ops.threads() == 3; ops.set_threads(1)"
    subprocess.run([sys.executable, "-c", program], check=True)


# Address space for the stacks of a hundred threads or so, but not of twenty thousand.
LIMITED = """
import resource, threading
from mxspec.formats.errors import MxspecError
from mxspec.runtime import ops

ops.set_threads(3)
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + (1 << 30),) * 2)
for count in (20000, 2**64 + 1):
    try:
        ops.set_threads(count)
    except MxspecError as error:
        print(error)
    print(ops.threads())
other = threading.Thread(target=print, args=("a thread of another",))
other.start()
other.join()
ops.set_threads(2)
print(ops.threads())
"""


def test_more_threads_than_the_system_gives() -> None:
    """An error that says so; the pool is as it was, and leaves the rest of the process what it needs."""
    result = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    said = "threads: got {}, more than the system gives (limits of memory or processes); working on 3"
    first, before, second, after, *rest = result.stdout.splitlines()
    assert [first.rsplit(", ask", 1)[0], before] == [said.format(20000), "3"]
    assert [second.rsplit(", ask", 1)[0], after] == [said.format(2**64 + 1), "3"]
    assert rest == ["a thread of another", "2"]


@pytest.mark.parametrize(("wanted", "used"), [("scalar", "scalar"), ("sse9", None)])
def test_the_environment_chooses_the_instruction_set(wanted: str, used: str | None) -> None:
    program = f"from mxspec.runtime import ops; assert ops.instruction_set() == {used!r}"
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "MXSPEC_ISA": wanted})
