"""The wheels of scripts/wheels: what is in them, and what they do where no compiler is.

`scripts/wheels --test` runs these. MXSPEC_WHEELS is the folder of the wheels, MXSPEC_AARCH64_PYTHON the program that
scripts/aarch64_python makes.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mxspec.runtime.ops import available_isas
from tests.serve.conftest import Server, with_chat_template

WHEELS = os.environ.get("MXSPEC_WHEELS")
pytestmark = pytest.mark.skipif(WHEELS is None, reason="no wheels; scripts/wheels --test makes them and runs this")

ROOT = Path(__file__).resolve().parents[1]
MACHINES = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
LIBRARIES = ("mxspec/formats/native/libmxspec_codec.so", "mxspec/runtime/ops/libmxspec_ops.so")
SYSTEM = re.compile(r"lib(c|m|pthread|dl|rt)\.so\.\d|ld-linux-[\w-]+\.so\.\d")
"""What every Linux of the C library has: everything else is linked in."""
AARCH64_PYTHON = os.environ.get("MXSPEC_AARCH64_PYTHON")
PROMPT = "def read_lines(path):"
PROGRAMS = [path for path in sorted((ROOT / "tests/runtime/ops").glob("test_*.py")) if "__main__" in path.read_text()]
"""Tests of operators that store results of fixed calls, run as programs."""


def wheel_for(machine: str) -> Path:
    """The one wheel for a machine; the test is skipped where only another machine's was made."""
    assert WHEELS is not None
    found = list(Path(WHEELS).resolve().glob(f"mxspec-*-py3-none-manylinux_2_28_{machine}.whl"))
    if not found:
        pytest.skip(f"{WHEELS}: no wheel for {machine}")
    (wheel,) = found
    return wheel


@MACHINES
def test_a_wheel_holds_only_the_program(machine: str) -> None:
    with zipfile.ZipFile(wheel_for(machine)) as wheel:
        names = wheel.namelist()
    assert set(LIBRARIES) <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"mxspec"}
    unwanted = re.compile(r"/(tests|target|draft|demo|seq2seq)/|\.(cpp|h|a|o|safetensors|cmake)$|CMakeLists")
    assert [name for name in names if unwanted.search(name)] == []
    assert len([name for name in names if name.endswith(".so")]) == len(LIBRARIES)


@MACHINES
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_contains_no_build_path(machine: str, library: str) -> None:
    with zipfile.ZipFile(wheel_for(machine)) as wheel:
        content = wheel.read(library)
    assert re.findall(rb"/(?:home|root|tmp|work|build|opt|mnt)/[\w./-]*", content) == []
    for folder in (ROOT, sysconfig.get_path("purelib"), Path.home()):
        assert str(folder).encode() not in content or str(folder) == "/"


@MACHINES
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_asks_for_the_system_only_and_shows_its_own_names_only(
    machine: str, library: str, tmp_path: Path
) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("needs binutils' readelf")
    with zipfile.ZipFile(wheel_for(machine)) as wheel:
        path = wheel.extract(library, tmp_path)
    dynamic = subprocess.run(["readelf", "--dynamic", "--wide", path], capture_output=True, text=True, check=True)
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic.stdout)
    assert needed
    assert [name for name in needed if not SYSTEM.fullmatch(name)] == []
    symbols = subprocess.run(["readelf", "--dyn-syms", "--wide", path], capture_output=True, text=True, check=True)
    rows = [row.split() for row in symbols.stdout.splitlines() if re.match(r" +\d+:", row)]
    defined = [row[7] for row in rows if len(row) > 7 and row[6] != "UND"]
    assert defined
    assert [name for name in defined if not re.match(r"mxspec_|RegisterCustomOps", name)] == []


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it asks for, by an installer that finds no compiler."""
    folder = tmp_path_factory.mktemp("wheel") / "venv"
    venv.create(folder, with_pip=True)
    wheel = wheel_for(os.uname().machine)
    run(folder, "python", "-m", "pip", "install", "-q", "--only-binary=:all:", "-c", ROOT / "constraints.txt", wheel)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """That of a process that sees the programs of a virtual environment and no others."""
    return os.environ | {"PATH": str(folder / "bin"), "CC": "none", "CXX": "none", "PYTHONPATH": ""}


def run(folder: Path, program: str, *arguments: object) -> str:
    """What a program of the environment prints."""
    command = [folder / "bin" / program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(folder), cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_the_extras_there_is_what_chats_and_no_torch(installed: Path) -> None:
    found = {line.split()[0].lower() for line in run(installed, "python", "-m", "pip", "list").splitlines()[2:]}
    assert {"mxspec", "onnxruntime", "starlette", "uvicorn"} <= found
    assert not found & {"torch", "transformers", "onnx", "scipy", "ray"}


def test_an_installed_wheel_writes_the_text_that_is_written_here(
    installed: Path, demo_bundles: dict[str, Path]
) -> None:
    for arguments in arguments_of_specrun(demo_bundles["real"]):
        assert run(installed, "specrun", *arguments) == written_here(arguments)


@pytest.mark.skipif(AARCH64_PYTHON is None, reason="no emulated Python; scripts/aarch64_python makes it")
def test_a_wheel_for_aarch64_writes_the_text_that_is_written_here(demo_bundles: dict[str, Path]) -> None:
    for arguments in arguments_of_specrun(demo_bundles["real"]):
        command = [str(AARCH64_PYTHON), "-m", "mxspec.runtime.start", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout == written_here(arguments)


def arguments_of_specrun(bundle: Path) -> list[list[str]]:
    """Greedy and sampled texts, drafted."""
    drafted = [str(bundle), PROMPT, "--max-new-tokens", "48", "--k", "3"]
    return [drafted, [*drafted, "--temperature", "0.8", "--seed", "3"]]


def written_here(arguments: Sequence[str]) -> str:
    """What this environment's specrun prints."""
    command = [str(Path(sys.executable).with_name("specrun")), *arguments]
    written = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(written) > len(PROMPT)
    return written


def test_an_installed_wheel_serves(installed: Path, demo_bundles: dict[str, Path], tmp_path: Path) -> None:
    bundle = with_chat_template(demo_bundles["real"], tmp_path / "chat.bundle")
    here = served(bundle)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(installed / "bin" / "python"))
        for name, value in environment(installed).items():
            patch.setenv(name, value)
        assert served(bundle) == here


def served(bundle: Path) -> list[str]:
    """What a server writes: a text, and an answer in a chat."""
    server = Server(str(bundle), "--port", "0")
    try:
        server.wait_ready()
        model = server.request("GET", "/v1/models").json["data"][0]["id"]
        settings = {"model": model, "max_tokens": 24, "temperature": 0}
        text = server.post("/v1/completions", settings | {"prompt": PROMPT})
        chat = server.post("/v1/chat/completions", settings | {"messages": [{"role": "user", "content": PROMPT}]})
        assert (text.status, chat.status) == (200, 200)
        return [text.json["choices"][0]["text"], chat.json["choices"][0]["message"]["content"]]
    finally:
        assert server.stop() == 0


def test_without_the_extra_a_grammar_is_refused_by_its_name(installed: Path, demo_bundles: dict[str, Path]) -> None:
    arguments = ["specrun", demo_bundles["real"], PROMPT, "--regex", "[a-z]+"]
    command = [installed / "bin" / arguments[0], *map(str, arguments[1:])]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(installed))
    assert done.returncode != 0
    assert "mxspec[grammar]" in done.stderr


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel's mxspec before this one's packages: onnx, which makes the operators' graphs."""
    folder = tmp_path_factory.mktemp("beside") / "venv"
    venv.create(folder, with_pip=True)
    run(folder, "python", "-m", "pip", "install", "-q", "--no-deps", wheel_for(os.uname().machine))
    packages = next((folder / "lib").glob("python*/site-packages"))
    here = [path for path in sys.path if path.endswith("-packages")] + site.getsitepackages()
    packages.joinpath("beside.pth").write_text("\n".join(here))
    return folder


def test_a_wheel_finds_the_instruction_sets_that_are_found_here(beside: Path) -> None:
    printed = run(beside, "python", "-c", "from mxspec.runtime.ops import available_isas; print(available_isas())")
    assert printed.strip() == str(available_isas())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_operators_give_the_bits_of_the_library_built_here(program: Path, beside: Path, tmp_path: Path) -> None:
    for isa in available_isas():
        results = []
        for python in (Path(sys.executable), beside / "bin" / "python"):
            path = tmp_path / f"{isa}-{len(results)}.npz"
            settings = os.environ | {"MXSPEC_ISA": isa}
            done = subprocess.run([python, program, path], env=settings, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            with np.load(path) as stored:
                results.append({name: stored[name].tobytes() for name in stored.files})
        assert results[0] == results[1], isa


@pytest.mark.parametrize("tests", ["runtime/ops/test_rotary_op.py", "formats/test_mx_golden.py"])
def test_rotations_and_the_codec_pass_their_tests(tests: str, beside: Path) -> None:
    command = [beside / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "tests" / tests]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
