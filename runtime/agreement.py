"""Does a manifest speak of the graph that lies beside it? Compared when a session opens, before a buffer is bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from mxspec.formats.errors import BundleError
from mxspec.formats.manifest import ModelEntry

Signature = dict[str, tuple[str, list[Any]]]  # type and shape by name; an open dimension has a name


def check_agreement(
    path: Path, session: ort.InferenceSession, inputs: Mapping[str, type[np.integer[Any]]], entry: ModelEntry
) -> None:
    """Raise BundleError where the graph's `inputs`, caches and logits are not those of its manifest entry."""
    takes = {value.name: (value.type, value.shape) for value in session.get_inputs()}
    gives = {value.name: (value.type, value.shape) for value in session.get_outputs()}
    for difference in _differences(takes, gives, inputs, entry):
        raise BundleError(f"{path}: {difference}; the manifest belongs to another graph, compile again")


def _differences(
    takes: Signature, gives: Signature, inputs: Mapping[str, type[np.integer[Any]]], entry: ModelEntry
) -> Iterator[str]:
    layers = sum(name.startswith("past_key.") for name in takes)
    if layers != entry.layers:
        yield f"layers: got {entry.layers}, the graph has {layers}"
    names = [f"{kind}.{layer}" for layer in range(layers) for kind in ("key", "value")]
    yield from _strangers("input", takes, {*inputs, *(f"past_{name}" for name in names)})
    yield from _strangers("output", gives, {"logits", *(f"present_{name}" for name in names)})
    for name, dtype in inputs.items():
        if takes[name][0] != f"tensor({np.dtype(dtype).name})":
            yield f"input {name!r} is {takes[name][0]}, expected {np.dtype(dtype).name}"
    if gives["logits"][1][-1:] != [entry.vocab_size]:
        yield f"vocab_size: got {entry.vocab_size}, the graph's logits are {gives['logits'][1]}"
    cache_type = {"float16": "tensor(float16)", "float32": "tensor(float)"}[entry.cache_dtype]
    for name, (kind, shape) in {name: takes[f"past_{name}"] for name in names}.items():
        if (kind, shape) != gives[f"present_{name}"] or len(shape) != 4:
            yield f"past_{name} is {kind} {shape}, and present_{name} is not"
        if kind != cache_type:
            yield f"cache_dtype: got {entry.cache_dtype}, the graph's past_{name} is {kind}"
        for key, index in (("kv_heads", 1), ("head_size", 3)):
            if shape[index] != getattr(entry, key):
                yield f"{key}: got {getattr(entry, key)}, the graph's past_{name} is {shape}"


def _strangers(what: str, found: Signature, expected: set[str]) -> Iterator[str]:
    if missing := sorted(expected - found.keys()):
        yield f"the graph has no {what} {missing[0]!r}"
    if surplus := sorted(found.keys() - expected):
        yield f"the graph has an unknown {what} {surplus[0]!r}"
