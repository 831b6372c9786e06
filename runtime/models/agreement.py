"""Whether a manifest describes the graph beside it. Checked when a session opens, before a buffer is bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from mxspec.formats.caches import capacity_name
from mxspec.formats.errors import BundleError
from mxspec.formats.manifest import ModelEntry

Signature = dict[str, tuple[str, list[Any]]]  # type and shape by name; an open dimension has a name
Inputs = Mapping[str, type[np.integer[Any]]]


def cache_names(layers: Iterable[int]) -> list[str]:
    """Names of the caches of a model's own tokens in some layers; graphs put past_ and present_ before them."""
    return [f"{kind}.{layer}" for layer in layers for kind in ("key", "value")]


def cross_names(layers: int) -> list[str]:
    """Names of the caches that an encoder writes for a decoder of `layers` layers; graphs put present_ before them."""
    return [f"cross_{name}" for name in cache_names(range(layers))]


def check_agreement(path: Path, session: ort.InferenceSession, inputs: Inputs, entry: ModelEntry) -> None:
    """Raise BundleError where the graph's `inputs`, caches, logits and states are not those of its manifest entry."""
    takes, gives = _signatures(session)
    _refuse(path, _differences(takes, gives, inputs, entry))


def check_encoder_agreement(path: Path, session: ort.InferenceSession, inputs: Inputs, entry: ModelEntry) -> None:
    """Raise BundleError where the `inputs` and caches of an encoder's graph are not those of its model's entry."""
    takes, gives = _signatures(session)
    _refuse(path, _encoder_differences(takes, gives, inputs, entry))


def _signatures(session: ort.InferenceSession) -> tuple[Signature, Signature]:
    takes = {value.name: (value.type, value.shape) for value in session.get_inputs()}
    gives = {value.name: (value.type, value.shape) for value in session.get_outputs()}
    return takes, gives


def _refuse(path: Path, differences: Iterable[str]) -> None:
    for difference in differences:
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
