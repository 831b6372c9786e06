"""A small bundle without any model in it: enough for readers that look at structure only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mxspec.formats.bundle import BundleWriter
from mxspec.formats.manifest import Manifest, ModelEntry, TensorEntry, TokenizerEntry
from mxspec.formats.native import available_isas
from mxspec.formats.safetensors_file import SafetensorsWriter, plan_layout
from mxspec.formats.weight_format import stored_as

TENSORS = [
    ("embedding", "fp16", (40, 33)),
    ("norm", "float32", (33,)),
    ("up", "mxfp6_e3m2", (17, 33)),
    ("down", "fp16_tiles", (33, 17)),
]


def write_model(writer: BundleWriter, name: str) -> ModelEntry:
    """A model of random bytes."""
    stored = [(tensor, *stored_as(kind, shape)) for tensor, kind, shape in TENSORS]
    layout = plan_layout(stored)
    sizes = {tensor.name: tensor.bytes for tensor in layout.tensors}
    with SafetensorsWriter(writer.folder / f"{name}.safetensors", layout) as weights:
        for tensor, _, _ in stored:
            weights.begin(tensor)
            data = hashlib.shake_128(tensor.encode()).digest(sizes[tensor])
            weights.append(data[:10])
            weights.append(data[10:])
        sha256 = weights.finish()
    (writer.folder / f"{name}.onnx").write_bytes(name.encode() * 10)
    writer.add_file(f"{name}.onnx")
    writer.add_file(f"{name}.safetensors", sha256)
    return ModelEntry(
        graph=f"{name}.onnx",
        weights=f"{name}.safetensors",
        architecture="llama",
        format="mxfp6_e3m2",
        layers=1,
        kv_heads=2,
        head_size=4,
        caches="float16",
        vocab_size=48,
        context_length=64,
        specializations=(1, 5, 16),
        tensors=tuple(
            TensorEntry(
                name=tensor,
                sources=(f"model.{tensor}",),
                format=kind,
                shape=shape,
                offset=layout.offsets[tensor],
                bytes=sizes[tensor],
                source_bytes=100,
            )
            for tensor, kind, shape in TENSORS
        ),
    )


def write_bundle(path: Path, *, force: bool = False, name: str = "small") -> Path:
    """Write the small bundle to `path`."""
    with BundleWriter(path, force=force) as writer:
        target, draft = write_model(writer, "target"), write_model(writer, "draft")
        (writer.folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}}))
        writer.add_file("tokenizer.json")
        sha256 = writer.files["tokenizer.json"].sha256
        writer.publish(
            Manifest(
                name=name,
                k_max=4,
                recipe={"name": "small"},
                models={"target": target, "draft": draft},
                tokenizer=TokenizerEntry(sha256=sha256, vocab_size=40, eos_token_ids=(0,)),
                files=writer.files,
                versions={"mxspec": "0"},
            )
        )
    return path


@pytest.fixture(params=available_isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every instruction set of this machine in turn."""
    monkeypatch.setenv("MXSPEC_ISA", request.param)
    return str(request.param)


@pytest.fixture
def bundle_path(tmp_path: Path) -> Path:
    """The small bundle, fresh for every test that wants to damage it."""
    return write_bundle(tmp_path / "small.bundle")


@pytest.fixture
def small_bundle() -> Callable[..., Path]:
    """Writes the small bundle to a place of the test's choice."""
    return write_bundle
