"""speccompile emit: folders of models for other programs, made from a bundle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from mxspec.compile.commands.emit import write
from mxspec.compile.commands.speccompile import main
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError
from mxspec.formats.manifest import EncoderEntry


def emit(bundle: Path, *args: object) -> Result:
    return CliRunner().invoke(main, ["emit", "standard", str(bundle), *map(str, args)])


@pytest.fixture(scope="module")
def bundle(tiny_bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("emit") / "pair.bundle"
    shutil.copytree(tiny_bundles["near"], path)
    return path


def test_standard_models_lie_beside_the_bundle(bundle: Path) -> None:
    result = emit(bundle, "--json")
    assert result.exit_code == 0, result.output
    index = json.loads(result.stdout)
    place = bundle.with_name("pair.standard")
    assert index.pop("output") == str(place)
    assert index == json.loads((place / "interchange.json").read_text())
    assert index["models"]["target"] == {"graph": "target.onnx", "weights": "target.safetensors", "opset": 28}
    assert index["models"]["draft"]["opset"] == 21
    for name in ("target", "draft"):
        graph = onnx.load(place / f"{name}.onnx", load_external_data=False).graph
        inputs = ["input_ids", "attention_mask", "position_ids", "past_key_values.0.key"]
        assert [value.name for value in graph.input][:4] == inputs
        assert [value.name for value in graph.output][:2] == ["logits", "present.0.key"]
    Bundle.open(bundle)  # nothing was put into it


def test_an_emitted_folder_is_replaced_only_by_force(bundle: Path, tmp_path: Path) -> None:
    assert emit(bundle, "-o", tmp_path / "x").exit_code == 0
    result = emit(bundle, "-o", tmp_path / "x")
    assert result.exit_code == 1
    assert "replace it with --force" in result.output
    assert emit(bundle, "-o", tmp_path / "x", "--force").exit_code == 0
    (tmp_path / "y").mkdir()
    result = emit(bundle, "-o", tmp_path / "y", "--force")
    assert "is not a folder of emitted models" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


def test_fixed_shapes_leave_no_free_dimension(bundle: Path, tmp_path: Path) -> None:
    result = emit(bundle, "-o", tmp_path / "x", "--shapes", 3, "--json")
    assert result.exit_code == 0, result.output
    index = json.loads(result.stdout)["models"]
    shapes = {call: (on["batch_size"], on["sequence_length"]) for call, on in index["target"]["calls"].items()}
    assert shapes == {"prefill": (1, 16), "decode": (3, 1), "score": (3, 9)}
    assert list(index["draft"]["calls"]) == ["prefill", "decode", "catch_up"]
    for name in ("target", "draft"):
        for call in index[name]["calls"].values():
            graph = onnx.load(tmp_path / "x" / call["graph"], load_external_data=False).graph
            for value in (*graph.input, *graph.output):
                dimensions = value.type.tensor_type.shape.dim
                assert all(dimension.HasField("dim_value") for dimension in dimensions), (call, value)
            weights = {
                each.value for held in graph.initializer for each in held.external_data if each.key == "location"
            }
            assert weights == {f"{name}.safetensors"}


def test_models_with_an_encoder_are_refused(bundle: Path, tmp_path: Path) -> None:
    opened = Bundle.open(bundle)
    encoder = EncoderEntry(graph="target_encoder.onnx", layers=1, context_length=64)
    target = opened.manifest.models["target"].model_copy(update={"encoder": encoder})
    manifest = opened.manifest.model_copy(update={"models": {"target": target}})
    with pytest.raises(BundleError, match="models with an encoder cannot be emitted"):
        write(Bundle(bundle, manifest), tmp_path / "x", force=False, console=Console(quiet=True))
