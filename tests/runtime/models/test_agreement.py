"""A manifest that speaks of another graph is refused when its session opens, in one line that names the key."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session


def open_session(path: Path, **changes: Any) -> Session:
    manifest = Bundle.open(path).manifest
    entry = manifest.models["target"].model_copy(update=changes)
    return Session(path, entry, min(manifest.tokenizer.vocab_size, entry.vocab_size), slots=1)


def test_a_true_manifest_is_taken(tiny_bundles: dict[str, Path]) -> None:
    assert open_session(tiny_bundles["near"]).run([Part(0, 0, [1, 2], 1)]).shape == (1, 259)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", 400),
        ("vocab_size", 10**12),
        ("kv_heads", 1),
        ("kv_heads", 4),
        ("head_size", 8),
        ("head_size", 10**12),
        ("layers", 1),
        ("layers", 3),
        ("layers", 10**12),
        ("caches", "float32"),
    ],
)
def test_a_false_one_is_refused_by_its_key(tiny_bundles: dict[str, Path], key: str, value: Any) -> None:
    with pytest.raises(BundleError, match=f"target.onnx: {key}: got {value}, the graph") as caught:
        open_session(tiny_bundles["near"], **{key: value})
    assert "\n" not in str(caught.value)


def changed_graph(bundle: Path, folder: Path, change: Callable[[Any], object], graph: str = "target.onnx") -> Session:
    """A session for the target of a bundle, one of whose graphs is another now."""
    for file in bundle.iterdir():
        os.link(file, folder / file.name)
    model = onnx.load(bundle / graph, load_external_data=False)
    change(model)
    (folder / "other.onnx").write_bytes(model.SerializeToString())
    entry = Bundle.open(bundle).manifest.models["target"]
    other = {"graph": "other.onnx"}
    if entry.encoder is not None and graph == entry.encoder.graph:
        other = {"encoder": entry.encoder.model_copy(update=other)}
    return Session(folder, entry.model_copy(update=other), 259, slots=1)


EXTRA = onnx.helper.make_tensor_value_info("extra", onnx.TensorProto.FLOAT, [1])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda model: model.graph.input.append(EXTRA), "unknown input 'extra'"),
        (lambda model: model.graph.output.pop(0), "no output 'logits'"),
    ],
)
def test_a_graph_of_something_else_is_refused(
    tiny_bundles: dict[str, Path], tmp_path: Path, change: Callable[[Any], object], says: str
) -> None:
    with pytest.raises(BundleError, match=says):
        changed_graph(tiny_bundles["near"], tmp_path, change)


def test_a_graph_of_another_version_of_the_operators_is_refused(tiny_bundles: dict[str, Path], tmp_path: Path) -> None:
    """Those of version 1 took tables twice as wide: one with half of the head rotated would run, and be wrong."""

    def earlier(model: Any) -> None:
        (ours,) = (opset for opset in model.opset_import if opset.domain == "mxspec")
        ours.version -= 1

    with pytest.raises(BundleError, match=r"not load it: .*mxspec.*; if .* wrote the bundle, compile it") as caught:
        changed_graph(tiny_bundles["near"], tmp_path, earlier)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"encoder": None}, r"target.onnx: the graph has an unknown input 'cross_key.0'"),
        ({"graph": "target_encoder.onnx"}, r"target_encoder.onnx: layers: got 2, the graph has 0"),
        ({"encoder_graph": "target.onnx"}, r"target.onnx: the graph has an unknown input 'encoder_lengths'"),
        ({"encoder_graph": "draft_encoder.onnx"}, None),
        ({"kv_heads": 2}, r"target.onnx: kv_heads: got 2, the graph's past_key.0"),
    ],
)
def test_an_encoders_graph_is_compared_too(t5_bundle: Path, changes: dict[str, Any], says: str | None) -> None:
    entry = Bundle.open(t5_bundle).manifest.models["target"]
    assert entry.encoder is not None
    if "encoder_graph" in changes:
        changes = {"encoder": entry.encoder.model_copy(update={"graph": changes["encoder_graph"]})}
    if says is None:  # of the same shape
        open_session(t5_bundle, **changes)
        return
    with pytest.raises(BundleError, match=says):
        open_session(t5_bundle, **changes)


def test_an_encoder_is_to_write_for_every_layer(t5_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"other.onnx: the graph has no output 'present_cross_value.1'"):
        changed_graph(t5_bundle, tmp_path, lambda model: model.graph.output.pop(), "target_encoder.onnx")
