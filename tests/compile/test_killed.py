"""A compile that is killed, or that the disk fails: nothing half is seen, and the next start goes on."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mxspec.compile import pipeline
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.planning.model import RefereeVerdict
from mxspec.compile.weights import write_model as write_model_module
from mxspec.formats.bundle import Bundle, BundleWriter
from mxspec.formats.errors import BundleError
from mxspec.formats.manifest import RefereeEntry
from tests.compile.commands.test_speccompile import done, failed, speccompile, write_mixture, write_pair, write_words

ROOT = Path(__file__).parents[2]

# Kills itself when a file's tensor of that number is begun, as the system does when memory is short.
KILLED = """
import os, signal, sys
from mxspec.formats.safetensors_file import SafetensorsWriter
begin, begun = SafetensorsWriter.begin, []
def kill(writer, name):
    begun.append((writer._path.name, name))
    if [file for file, _ in begun].count(sys.argv[1]) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    begin(writer, name)
SafetensorsWriter.begin = kill
from mxspec.compile.commands.speccompile import main
from tests.compile.test_killed import leave_out_the_referee
leave_out_the_referee(setattr)
main(sys.argv[3:])
"""


def leave_out_the_referee(setattr: Callable[[object, str, object], None]) -> None:
    """It takes most of the time, and is tested elsewhere."""
    setattr(pipeline, "judge", lambda *arguments: RefereeVerdict(RefereeEntry(quiet=0, loud=0), ()))
    setattr(pipeline, "check_windows", lambda *arguments: None)
    setattr(pipeline, "check_own_weights", lambda *arguments: None)


@pytest.fixture(autouse=True)
def _no_referee(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_the_referee(monkeypatch.setattr)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"), "llama", rounding_minutes=0)


def kill(file: str, tensor: int, *arguments: object) -> None:
    """A speccompile that ends in the midst of writing."""
    command = [sys.executable, "-c", KILLED, file, str(tensor), *map(str, arguments)]
    killed = subprocess.run(command, capture_output=True, timeout=120, check=False, cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


def test_a_killed_compile_resumes_at_its_tensor(recipe: Path, tmp_path: Path) -> None:
    place, work = tmp_path / "x.bundle", tmp_path / "x.bundle.partial"
    kill("draft.safetensors", 3, recipe, "-o", place)
    assert os.listdir(tmp_path) == [work.name]
    target = (work / "bundle" / "target.safetensors").stat()
    result = done(recipe, "-o", place, "--json")
    assert f"{work} was left by an interrupted run" in " ".join(result.stderr.split())
    count = len(Bundle.open(place).manifest.models["target"].tensors)
    assert f"{count} tensors of the target were packed by the run before" in result.stderr
    assert "2 tensors of the draft were packed by the run before" in result.stderr
    now = (place / "target.safetensors").stat()
    assert (now.st_ino, now.st_mtime_ns) == (target.st_ino, target.st_mtime_ns)  # not a byte was written again
    assert os.listdir(tmp_path) == [place.name]
    Bundle.open(place).verify()


def test_a_killed_budget_of_a_mixture_resumes_with_its_choice(tmp_path: Path) -> None:
    write_words(tmp_path / "text.txt", 200)
    recipe, place, whole = write_mixture(tmp_path), tmp_path / "x.bundle", tmp_path / "whole.bundle"
    options = ["--max-ratio", "1.002", "--calibrate", tmp_path / "text.txt", "--rounding", "nearest"]
    kill("target.safetensors", 8, recipe, "-o", place, *options)
    result = done(recipe, "-o", place, "--json", *options)
    assert "7 tensors of the target were packed by the run before" in result.stderr
    assert speccompile(recipe, "-o", whole, "--json", *options).exit_code == 0
    weights = [(path / "target.safetensors").read_bytes() for path in (place, whole)]
    assert weights[0] == weights[1]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writing beyond `size` bytes fails here with EFBIG, as it does with ENOSPC on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def limited(call: Callable[..., Any], size: int) -> Callable[..., Any]:
    def limit(*arguments: Any, **options: Any) -> Any:
        with largest_file(size):
            return call(*arguments, **options)

    return limit


@pytest.mark.parametrize(
    ("owner", "name", "file"),
    [
        (write_model_module, "pack_weights", "target.safetensors"),
        (write_model_module.ir, "save", "target.onnx"),
    ],
)
def test_a_disk_that_is_full(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, file: str
) -> None:
    monkeypatch.setattr(owner, name, limited(getattr(owner, name), 3000))
    place = tmp_path / "x.bundle"
    line = failed(speccompile(recipe, "-o", place))
    assert "File too large" in line
    assert line.endswith(f"nothing was written to {place}")
    assert file in line or file == "target.onnx"  # who writes the graph does not say where
    assert os.listdir(tmp_path) == []


def test_a_disk_that_has_no_room_for_the_tokenizer(recipe: Path, tmp_path: Path) -> None:
    def copy() -> None:
        with (
            Checkpoint(recipe.parent / "target") as checkpoint,
            BundleWriter(tmp_path / "x.bundle") as writer,
            largest_file(100),
        ):
            pipeline.copy_tokenizer(checkpoint, writer)

    with pytest.raises(BundleError, match=r"bundle/tokenizer\.json: File too large; nothing was written"):
        copy()
    assert os.listdir(tmp_path) == []
