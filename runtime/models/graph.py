"""A graph on ONNX Runtime: loaded, compared with its manifest, and the arrays that its calls read and write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from mxspec.formats.caches import capacity_name
from mxspec.formats.errors import BundleError
from mxspec.formats.manifest import ModelEntry
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


class RowBuffer:
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


Signature = dict[str, tuple[str, list[Any]]]  # type and shape by name; an open dimension has a name
Inputs = Mapping[str, type[np.integer[Any]]]


def cache_names(layers: Iterable[int]) -> list[str]:
    """Names of the caches of a model's own tokens in some layers; graphs put past_ and present_ before them."""
    return [f"{kind}.{layer}" for layer in layers for kind in ("key", "value")]


def cross_names(layers: int) -> list[str]:
    """Names of the caches that an encoder writes for a decoder of `layers` layers; graphs put present_ before them."""
    return [f"cross_{name}" for name in cache_names(range(layers))]


def check_agreement(
    path: Path, session: ort.InferenceSession, inputs: Inputs, entry: ModelEntry, *, encoder: bool = False
) -> None:
    """Raise BundleError where a graph's `inputs`, caches, logits and states are not those of its manifest entry.

    encoder: the graph is that of the model's encoder.
    """
    takes = {value.name: (value.type, value.shape) for value in session.get_inputs()}
    gives = {value.name: (value.type, value.shape) for value in session.get_outputs()}
    for difference in (_encoder_differences if encoder else _differences)(takes, gives, inputs, entry):
        raise BundleError(f"{path}: {difference}; the manifest belongs to another graph, compile again")


def _differences(takes: Signature, gives: Signature, inputs: Inputs, entry: ModelEntry) -> Iterator[str]:
    layers = sum(name.startswith("past_key.") for name in takes)
    if layers != entry.layers:
        yield f"layers: got {entry.layers}, the graph has {layers}"
    names = cache_names(range(layers))
    read = cross_names(layers) if entry.encoder is not None else []
    states_in, states_out = _states_of(entry)
    yield from _strangers("input", takes, {*inputs, *(f"past_{name}" for name in names), *read, *states_in})
    yield from _strangers("output", gives, {"logits", *(f"present_{name}" for name in names), *states_out})
    yield from _wrong_types(takes, inputs)
    yield from _wrong_states(takes, states_in)
    yield from _wrong_states(gives, states_out)
    if gives["logits"][1][-1:] != [entry.vocab_size]:
        yield f"vocab_size: got {entry.vocab_size}, the graph's logits are {gives['logits'][1]}"
    yield from _wrong_caches(takes, gives, [(f"past_{name}", f"present_{name}") for name in names], entry)
    yield from _wrong_caches(takes, takes, [(name, name) for name in read], entry)
    yield from _wrong_windows(takes, entry)


def _encoder_differences(takes: Signature, gives: Signature, inputs: Inputs, entry: ModelEntry) -> Iterator[str]:
    layers = sum(name.startswith("cross_key.") for name in takes)
    if layers != entry.layers:
        yield f"layers: got {entry.layers}, the graph writes for {layers}"
    names = cross_names(layers)
    yield from _strangers("input", takes, {*inputs, *names})
    yield from _strangers("output", gives, {f"present_{name}" for name in names})
    yield from _wrong_types(takes, inputs)
    yield from _wrong_caches(takes, gives, [(name, f"present_{name}") for name in names], entry)


def _states_of(entry: ModelEntry) -> tuple[dict[str, int], dict[str, int]]:
    """Inputs and outputs of hidden states: the size of a row of each."""
    if entry.states is None:
        return {}, {}
    if entry.states.own is None:
        return {}, {"states": entry.states.size}
    return {"states": entry.states.size, "own_states": entry.states.own}, {"next_states": entry.states.own}


def _wrong_states(found: Signature, sizes: Mapping[str, int]) -> Iterator[str]:
    for name, size in sizes.items():
        kind, shape = found[name]
        if kind != "tensor(float)" or len(shape) != 2 or shape[1] != size:
            yield f"{name} is {kind} {shape}, expected rows of {size} float32 values"


def _wrong_types(takes: Signature, inputs: Inputs) -> Iterator[str]:
    for name, dtype in inputs.items():
        if takes[name][0] != f"tensor({np.dtype(dtype).name})":
            yield f"input {name!r} is {takes[name][0]}, expected {np.dtype(dtype).name}"


def _wrong_caches(
    takes: Signature, gives: Signature, names: Sequence[tuple[str, str]], entry: ModelEntry
) -> Iterator[str]:
    """Caches whose output is another than their input, or that the entry does not describe."""
    cache_type = {"float16": "tensor(float16)", "float32": "tensor(float)", "mxint8": "tensor(uint8)"}[entry.caches]
    sizes = {"kv_heads": (1, entry.kv_heads), "head_size": (3, entry.cache_entry)}
    for name, written in names:
        kind, shape = takes[name]
        if (kind, shape) != gives[written] or len(shape) != 4:
            yield f"{name} is {kind} {shape}, and {written} is not"
        if kind != cache_type:
            yield f"caches: got {entry.caches}, the graph's {name} is {kind}"
        for key, (index, size) in sizes.items():
            if shape[index] != size:
                yield f"{key}: got {getattr(entry, key)}, the graph's {name} is {shape}"


def _wrong_windows(takes: Signature, entry: ModelEntry) -> Iterator[str]:
    """Layers whose cache has the capacity of another window than the entry's; graphs of fixed shapes have numbers."""
    for layer, window in enumerate(entry.layer_windows):
        found, expected = takes[f"past_key.{layer}"][1][2], capacity_name(window)
        if found != expected and not isinstance(found, int):
            yield f"windows: got {window} for layer {layer}, the graph's cache has {found}"


def _strangers(what: str, found: Signature, expected: set[str]) -> Iterator[str]:
    if missing := sorted(expected - found.keys()):
        yield f"the graph has no {what} {missing[0]!r}"
    if surplus := sorted(found.keys() - expected):
        yield f"the graph has an unknown {what} {surplus[0]!r}"
