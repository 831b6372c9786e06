"""What tests share: a graph that was read back is the one that was traced, and a failed try is made again."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest
from transformers import AutoConfig

from tests.compile import outlined
from tests.once import KEPT, TRACING, compiled_once, kept_graphs, shared_folder

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 120,
}


def exported(weight_format: str, context_length: int, **settings: float) -> bytes:
    config = AutoConfig.for_model("llama", **SIZES, **settings)
    found = outlined.exported(config, context_length, format=weight_format)
    for node in found.model.graph:
        node.name = None  # the passes number their own, among others where a graph was read back
    model: bytes = ir.serde.serialize_model(found.model).SerializeToString()
    return (
        model + repr([(spec, None if spec.value is None else spec.value.tobytes()) for spec in found.weights]).encode()
    )


def test_a_graph_that_was_read_back_is_the_one_that_was_traced(tmp_path_factory: pytest.TempPathFactory) -> None:
    formats = ("mxint8", "fp16_tiles")
    traced = [exported(name, 96) for name in formats]
    with compiled_once(tmp_path_factory):
        for _ in range(2):
            assert [exported(name, 96) for name in formats] == traced
        others = [exported("mxint8", 64), exported("mxint8", 96, rms_norm_eps=0.1)]
    assert len({*traced, *others}) == 4


def test_a_half_finished_fixture_is_made_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    tries: list[Path] = []

    def fill(folder: Path) -> None:
        tries.append(folder)
        (folder / "file").write_text("whole")
        if len(tries) == 1:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        shared_folder(tmp_path_factory, "tried", fill)
    for _ in range(2):
        assert (shared_folder(tmp_path_factory, "tried", fill) / "file").read_text() == "whole"
    assert len(tries) == 2


def test_graphs_are_kept_until_what_traces_them_changes(tmp_path: Path) -> None:
    package = tmp_path / "package"
    for name in TRACING:
        place = package / name
        (place if place.suffix else place / "file.py").parent.mkdir(parents=True, exist_ok=True)
        (place if place.suffix else place / "file.py").write_text(name)
    (package / "runtime.py").write_text("")
    first = kept_graphs(tmp_path / "traces", package)
    (first / "graph").touch()
    (package / "runtime.py").write_text("what no trace imports")
    assert kept_graphs(tmp_path / "traces", package) == first
    others = set()
    for file in sorted(package.rglob("*/*.py")):
        text = file.read_text()
        file.write_text(text + "x")
        others.add(kept_graphs(tmp_path / "traces", package))
        file.write_text(text)
    assert len(others) == len(TRACING)
    assert first not in others
    assert len(list((tmp_path / "traces").iterdir())) == KEPT
    assert not first.exists()
