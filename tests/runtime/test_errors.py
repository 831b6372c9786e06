"""The errors that a caller may have to catch have public names."""

from __future__ import annotations

import ast
import builtins
import inspect
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import mxspec
from mxspec.formats.errors import ContextLengthError, GenerationError, MxspecError, UnavailableError
from mxspec.runtime.drafters import drafter
from mxspec.runtime.models import caches, encoder, graph, reader, session
from mxspec.runtime.sampling import settings
from mxspec.runtime.scheduling import chosen_settings, worker
from mxspec.runtime.text import chat, tokenizer


def test_public_names_are_listed() -> None:
    assert {"Engine", "Token", "MxspecError"} <= set(dir(mxspec))


def public_modules() -> set[ModuleType]:
    """Those that public names come from, and those that they call."""
    homes = {sys.modules[getattr(mxspec, name).__module__] for name in mxspec.__all__ if name != "__version__"}
    return homes | {
        caches,
        chat,
        chosen_settings,
        drafter,
        encoder,
        graph,
        reader,
        session,
        settings,
        tokenizer,
        worker,
    }


def named_errors(module: ModuleType) -> Iterator[str]:
    """What its code raises, and what its documentation says that it raises."""
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            yield node.exc.func.id
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from re.findall(r"\b[A-Z]\w+Error\b", ast.get_docstring(node) or "")


def test_errors_of_public_functions_are_public() -> None:
    raised = {name for module in public_modules() for name in named_errors(module)}
    raised -= {name for name in raised if hasattr(builtins, name)}
    assert {"BundleError", "GenerationError", "QueueFullError"} <= raised
    assert {name for name in raised if name.endswith("Error")} <= set(mxspec.__all__)
    assert all(issubclass(getattr(mxspec, name), MxspecError) for name in mxspec.__all__ if name.endswith("Error"))


def test_public_errors_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()
    assert all(f"`mxspec.{name}`" in page for name in mxspec.__all__ if name.endswith("Error"))


def test_an_error_carries_the_field_that_it_is_about_also_to_another_process() -> None:
    for kind in (GenerationError, ContextLengthError, UnavailableError):
        error = pickle.loads(pickle.dumps(kind("k", "got 9, expected at most 8")))
        assert (type(error), error.field, error.problem, str(error)) == (
            kind,
            "k",
            "got 9, expected at most 8",
            "k: got 9, expected at most 8",
        )
    assert str(GenerationError("", "unknown key 'x'")) == "unknown key 'x'"
