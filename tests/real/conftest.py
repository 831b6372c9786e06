"""A published model and its bundle."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from mxspec.compile.commands.speccompile import main as speccompile
from tests.once import shared_folder

SCRIPT = Path(__file__).parents[2] / "scripts" / "published-model"
HEAD = Path(__file__).parents[2] / "recipes" / "smollm2" / "draft"
COMPILED = (
    *("--target-format", "mxfp6_e2m3", "--activations", "int8", "--context-length", "1024"),
    *("--rounding", "nearest", "--rounding-minutes", "0", "--with-baseline"),
    *("--draft", str(HEAD), "--draft-format", "mxfp6_e2m3", "--draft-activations", "int8"),
)


@pytest.fixture(scope="session")
def file() -> Path:
    """The GGUF file; the tests are skipped where it cannot be had."""
    done = subprocess.run([SCRIPT], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(done.stderr.strip())
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def bundle(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the demo compiles, with half the context."""

    def fill(folder: Path) -> None:
        done = CliRunner().invoke(speccompile, [str(file), *COMPILED, "-o", str(folder / "smollm2.bundle")])
        assert done.exit_code == 0, done.output

    return shared_folder(tmp_path_factory, "smollm2", fill) / "smollm2.bundle"
