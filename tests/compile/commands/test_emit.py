"""speccompile emit: folders of models for other programs, made from a bundle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from mxspec.compile.check.specialize import check_same_bits
from mxspec.compile.commands.emit import write
from mxspec.compile.commands.speccompile import main
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError, CheckFailed
from mxspec.formats.manifest import EncoderEntry
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session


def speccompile(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def bundle(tiny_bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("emit") / "pair.bundle"
    shutil.copytree(tiny_bundles["near"], path)
    return path


@pytest.fixture(scope="module")
def static(bundle: Path) -> Path:
    result = speccompile("emit", "static", bundle, "--slots", 3)
    assert result.exit_code == 0, result.output
    return bundle.with_name("pair.static")


def test_standard_models_lie_beside_the_bundle(bundle: Path) -> None:
    result = speccompile("emit", "standard", bundle, "--json")
    assert result.exit_code == 0, result.output
    index = json.loads(result.stdout)
    place = bundle.with_name("pair.standard")
    assert index.pop("output") == str(place)
    assert index == json.loads((place / "interchange.json").read_text())
    assert index["models"]["target"] == {"graph": "target.onnx", "weights": "target.safetensors", "opset": 28}
    assert index["models"]["draft"]["opset"] == 21
    for name in ("target", "draft"):
        graph = onnx.load(place / f"{name}.onnx", load_external_data=False).graph
        assert [value.name for value in graph.input][:4] == [
            "input_ids",
            "attention_mask",
            "position_ids",
            "past_key_values.0.key",
        ]
        assert [value.name for value in graph.output][:2] == ["logits", "present.0.key"]
    Bundle.open(bundle)  # nothing was put into it


def test_an_emitted_folder_is_replaced_only_by_force(bundle: Path, static: Path, tmp_path: Path) -> None:
    result = speccompile("emit", "static", bundle)
    assert result.exit_code == 1
    assert "replace it with --force" in result.output
    assert speccompile("emit", "static", bundle, "-o", tmp_path / "x").exit_code == 0
    assert speccompile("emit", "static", bundle, "-o", tmp_path / "x", "--force").exit_code == 0
    (tmp_path / "y").mkdir()
    result = speccompile("emit", "static", bundle, "-o", tmp_path / "y", "--force")
    assert "is not a folder of emitted models" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


def test_static_graphs_have_no_free_dimension(static: Path) -> None:
    index = json.loads((static / "interchange.json").read_text())["models"]
    assert list(index["target"]["graphs"]) == ["prefill", "decode", "score"]
    assert list(index["draft"]["graphs"]) == ["prefill", "decode", "catch_up"]
    score = {"graph": "target.score.onnx", "tokens": 27, "sequences": 3, "rows": 27, "slots": 3, "capacity": 96}
    assert index["target"]["graphs"]["score"] == score
    assert {k: index["target"]["graphs"]["prefill"][k] for k in ("tokens", "sequences", "rows")} == {
        "tokens": 16,
        "sequences": 1,
        "rows": 1,
    }
    for path in static.glob("*.onnx"):
        graph = onnx.load(path, load_external_data=False).graph
        for value in (*graph.input, *graph.output, *graph.value_info):
            dimensions = value.type.tensor_type.shape.dim
            assert all(dimension.HasField("dim_value") for dimension in dimensions), (path.name, value)


def test_static_graphs_share_the_bundles_weights(bundle: Path, static: Path) -> None:
    for name in ("target", "draft"):
        assert (static / f"{name}.safetensors").samefile(bundle / f"{name}.safetensors")


def test_static_graphs_give_the_bundles_bits(bundle: Path, static: Path) -> None:
    """Single steps of three texts after a prompt each, read in a chunk whose end is padding that is then forgotten."""
    entry = Bundle.open(bundle).manifest.models["target"]
    prompts = np.random.default_rng(1).integers(0, 250, (3, 11)).tolist()

    def session(folder: Path, graph: str) -> Session:
        return Session(folder, entry.model_copy(update={"graph": graph}), entry.vocab_size, slots=3)

    prefill, decode, own = (
        session(static, "target.prefill.onnx"),
        session(static, "target.decode.onnx"),
        session(bundle, entry.graph),
    )
    for slot, prompt in enumerate(prompts):
        prefill.run([Part(slot, 0, prompt + [0] * 5, 1)])
        own.run([Part(slot, 0, prompt, 1)])
    for name, cache in prefill.caches.items():
        decode.caches[name][:] = cache
    parts = [Part(slot, 11, [7 + slot], 1) for slot in range(3)]
    assert np.array_equal(decode.run(parts).view(np.uint32), own.run(parts).view(np.uint32))


def test_other_bits_are_found(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle, tmp_path / "b")
    entry = Bundle.open(bundle).manifest.models["target"]
    tensor = next(tensor for tensor in entry.tensors if "lm_head" in tensor.name)
    with (tmp_path / "b" / entry.weights).open("r+b") as file:
        file.seek(tensor.offset)
        file.write(b"\x15\x2a\x07")
    sessions = [Session(folder, entry, entry.vocab_size, slots=1) for folder in (bundle, tmp_path / "b")]
    with pytest.raises(CheckFailed, match=r"target\.onnx: its logits are not bit for bit"):
        check_same_bits(*sessions, sequences=1, length=1, rows=1)


def test_weights_are_copied_where_they_cannot_be_linked(bundle: Path, tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    result = speccompile("emit", "static", bundle, "-o", tmp_path / "x", "--json")
    assert result.exit_code == 0, result.output
    assert not json.loads(result.stdout)["models"]["target"]["weights_are_linked"]
    assert (tmp_path / "x" / "target.safetensors").read_bytes() == (bundle / "target.safetensors").read_bytes()


def test_models_with_an_encoder_are_refused(bundle: Path, tmp_path: Path) -> None:
    opened = Bundle.open(bundle)
    encoder = EncoderEntry(graph="target_encoder.onnx", layers=1, context_length=64)
    target = opened.manifest.models["target"].model_copy(update={"encoder": encoder})
    manifest = opened.manifest.model_copy(update={"models": {"target": target}})
    with pytest.raises(BundleError, match="models with an encoder cannot be emitted"):
        write("standard", Bundle(bundle, manifest), tmp_path / "x", force=False, console=Console(quiet=True))
