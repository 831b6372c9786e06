"""The peer's programs, built from the source in its Python package (the sdist of llama-cpp-python holds it)."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from mxspec.runtime import ops

PACKAGE = "llama-cpp-python==0.3.36"
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # the server's page, which would be downloaded
)
NATIVE = "-DGGML_NATIVE=ON"
BUILD_OPTIONS = {
    "avx2": ("-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON", "-DGGML_BMI2=ON"),
    # GCC 12 takes LDTILECFG to read 8 bytes, and drops the stores of the others: with signal 11, unless told not to.
    "amx": (NATIVE, "-DCMAKE_CXX_FLAGS=-fno-tree-dse -fno-dse"),
}
NO_AMX = (NATIVE, "-DCMAKE_CXX_FLAGS=-mno-amx-int8")


work_option = click.option(
    "--work",
    type=click.Path(path_type=Path),
    default=Path("build/llama_cpp"),
    show_default=True,
    help="Folder for the peer's programs and for models.",
)


@dataclass(frozen=True, slots=True)
class Peer:
    """llama.cpp's programs by what they add to its name, the folder for files, and the threads of both programs."""

    work: Path
    builds: Mapping[str, Path]
    threads: int

    @classmethod
    def open(cls, work: Path, *tools: str) -> Peer:
        """Build the programs for mxspec's instruction set; both programs have as many threads as mxspec now."""
        work.mkdir(parents=True, exist_ok=True)
        return cls(work, build_peers(work, ops.instruction_set(), tools), ops.threads())

    @property
    def binaries(self) -> Path:
        """The programs of the first build."""
        return self.builds[""]


def build_peer(folder: Path, isa: str | None, tools: Sequence[str]) -> Path:
    """The folder of the peer's programs; missing `tools` are built from the sdist.

    They use the machine's best instruction set but AMX, or AVX2 or AMX if that is `isa`.
    """
    build = folder / (f"build-{isa}" if isa in BUILD_OPTIONS else "build")
    binaries = build / "bin"
    if not all((binaries / tool).exists() for tool in tools):
        plain = NO_AMX if platform.machine() == "x86_64" else (NATIVE,)
        instructions = BUILD_OPTIONS.get(isa or "", plain)
        subprocess.run(["cmake", "-S", source_of(folder), "-B", build, *OPTIONS, *instructions], check=True)
        jobs = str(len(os.sched_getaffinity(0)))
        subprocess.run(["cmake", "--build", build, "--target", *tools, "--parallel", jobs], check=True)
    return binaries


def build_peers(folder: Path, isa: str | None, tools: Sequence[str]) -> dict[str, Path]:
    """build_peer() by what to add to its name: with AMX there are two, since AMX makes some of its formats slower."""
    if isa != "amx":
        return {"": build_peer(folder, isa, tools)}
    return {"": build_peer(folder, None, tools), ", AMX": build_peer(folder, isa, tools)}


def source_of(folder: Path) -> Path:
    """The peer's source below a folder; a missing source is fetched from the package index."""
    return _found(folder) or _fetched(folder)


def _found(folder: Path) -> Path | None:
    return next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"), None)


def _fetched(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python"]
    subprocess.run([*pip, "-d", folder, PACKAGE], check=True)
    with tarfile.open(next(folder.glob("llama_cpp_python-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    source = _found(folder)
    assert source is not None
    return source
