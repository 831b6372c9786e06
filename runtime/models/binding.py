"""A graph on ONNX Runtime, and the arrays that its calls read and write where they lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from mxspec.formats.errors import BundleError
from mxspec.runtime import ops


def session_options() -> ort.SessionOptions:
    """Options for graphs with our operators: those run on their own threads, ONNX Runtime needs only the caller's."""
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(ops.library_path()))
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_prepacking", "1")  # prepacking copies weights out of the mapping
    return options


def load_graph(path: Path, options: ort.SessionOptions | None = None) -> ort.InferenceSession:
    """A graph with our operators; options: of session_options(), changed. Raises BundleError."""
    try:
        return ort.InferenceSession(str(path), options or session_options(), providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own errors have no common base
        said = " ".join(str(error).split())
        raise BundleError(
            f"{path}: ONNX Runtime does not load it: {said}; if another mxspec wrote the bundle, compile it again"
        ) from None


def cannot_run(graph: str, error: Exception) -> BundleError:
    """The error of a call that ONNX Runtime refuses: of a changed graph, for compiling tries every graph."""
    said = " ".join(str(error).split())
    return BundleError(f"{graph}: ONNX Runtime cannot run it: {said}; the bundle is damaged: compile it again")


KEPT = 64  # arrays; steps of a few texts need fewer, but pieces of prompts and sources have any length


class Input:
    """A small input, with an array of each of its latest shapes: bound again only where the shape changes."""

    def __init__(self, binding: Any, name: str, dtype: type[np.integer[Any]]) -> None:
        self._binding, self._name, self._dtype = binding, name, dtype
        self._made: dict[tuple[int, ...], tuple[NDArray[Any], Any]] = {}
        self._bound: NDArray[Any] | None = None

    def of(self, *shape: int) -> NDArray[Any]:
        """The array of that shape, which the next call reads."""
        if self._bound is not None and self._bound.shape == shape:
            return self._bound
        made = self._made.pop(shape) if shape in self._made else self._make(shape)
        self._bound, value = self._made[shape] = made
        self._binding.bind_ortvalue_input(self._name, value)
        if len(self._made) > KEPT:
            del self._made[next(iter(self._made))]  # the least recently used
        return self._bound

    def _make(self, shape: tuple[int, ...]) -> tuple[NDArray[Any], Any]:
        array = np.zeros(shape, self._dtype)
        return array, ort.OrtValue.ortvalue_from_numpy(array)


class Rows:
    """Float32 rows that calls read or write: one buffer, as large as the largest call so far, bound from its beginning.

    `bind` is bind_ortvalue_input or bind_ortvalue_output of a session's binding.
    """

    def __init__(self, bind: Callable[[str, ort.OrtValue], object], name: str, width: int) -> None:
        self._bind, self._name = bind, name
        self._buffer = np.zeros((0, width), np.float32)
        self._made: dict[int, tuple[NDArray[np.float32], ort.OrtValue]] = {}  # by the number of rows
        self._bound: NDArray[np.float32] | None = None

    def of(self, count: int) -> NDArray[np.float32]:
        """float32[count, width], which the next call reads or writes."""
        if self._bound is None or count != len(self._bound):
            if count > len(self._buffer):
                self._buffer = np.zeros((count, self._buffer.shape[1]), np.float32)
                self._made.clear()
            if count not in self._made:
                rows = self._buffer[:count]
                self._made[count] = rows, ort.OrtValue.ortvalue_from_numpy(rows)
            self._bound, value = self._made[count]
            self._bind(self._name, value)
        return self._bound
