"""The runtime stands without the compiler: neither it nor its command imports what only compiling needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORBIDDEN = ("torch", "transformers", "onnx", "onnxscript", "onnx_ir", "safetensors", "mxspec.compile")


@pytest.mark.parametrize("module", ["mxspec.runtime.start", "mxspec.runtime.engine", "mxspec.runtime.ops"])
def test_importing_the_runtime_imports_no_compiler(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {FORBIDDEN!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_names_the_engine_and_imports_it_late() -> None:
    code = (
        "import sys, mxspec; assert 'onnxruntime' not in sys.modules; "
        "assert mxspec.Engine.__module__ == 'mxspec.runtime.engine'; assert mxspec.__version__"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_options_of_specrun_import_no_code_that_runs_models() -> None:
    slow = ("onnxruntime", "tokenizers", "mxspec.runtime.engine", "mxspec.runtime.sampling")
    code = f"import sys, mxspec.runtime.commands.specrun; print([name for name in {slow!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
