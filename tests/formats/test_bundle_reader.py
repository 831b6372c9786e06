"""Hostile and damaged bundles: each is refused when it is opened, in one line that says what is wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from mxspec.formats import bundle as bundle_module
from mxspec.formats import safetensors_file
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError

Json = dict[str, Any]


def edit_manifest(path: Path, edit: Callable[[Json], object]) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    edit(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def edit_header(path: Path, edit: Callable[[Json], object], *, data_bytes: int = 0) -> None:
    """Change the header of the target's weights, keeping its length and telling the manifest the file's new size."""
    file = path / "target.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    edit(header)
    text = json.dumps(header, separators=(",", ":")).encode().ljust(length)
    assert len(text) == length, "make room: the edit must not lengthen the header beyond its padding"
    data = content[8 + length :]
    data = data[:data_bytes] if data_bytes < 0 else data + bytes(data_bytes)
    file.write_bytes(length.to_bytes(8, "little") + text + data)
    edit_manifest(path, lambda manifest: manifest["files"]["target.safetensors"].update(bytes=file.stat().st_size))


def refused(path: Path) -> str:
    with pytest.raises(BundleError) as caught:
        Bundle.open(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_good_bundle_opens_and_verifies(bundle_path: Path) -> None:
    bundle = Bundle.open(bundle_path)
    bundle.verify()
    assert bundle.manifest.models["target"].specializations == (1, 5, 16)
    assert bundle.graph_path("draft") == bundle_path / "draft.onnx"


def test_weights_open_with_the_reference_library(bundle_path: Path) -> None:
    bundle = Bundle.open(bundle_path)
    theirs = safetensors.numpy.load_file(bundle.weights_path("target"))
    content = bundle.weights_path("target").read_bytes()
    for tensor in bundle.manifest.models["target"].tensors:
        assert theirs[tensor.name].tobytes() == content[tensor.offset : tensor.offset + tensor.bytes]
        assert tensor.offset % 64 == 0


def test_a_missing_baseline_says_how_to_get_one(bundle_path: Path) -> None:
    with pytest.raises(BundleError, match="--with-baseline"):
        Bundle.open(bundle_path).graph_path("baseline")


def test_no_folder_and_no_manifest(tmp_path: Path) -> None:
    assert "no such directory" in refused(tmp_path / "none")
    assert "manifest.json is missing" in refused(tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "schema version None"),
        (b'{"schema_version": 2, "schema_version": 2}', "'schema_version' appears twice"),
        (b'{"schema_version": NaN}', "NaN is not a JSON number"),
        (b'{"schema_version": 1e999}', "1e999 is too large for a number"),
        (b'{"schema_version": -1e999}', "-1e999 is too large for a number"),
        (b'{"schema_version": 4}', "key 'name' is missing"),
        (b'{"schema_version": true}', "schema version True"),
        (b'{"schema_version": 3}', "schema version 3, this mxspec reads 4; compile the bundle again"),
        (b'{"schema_version": 5}', "schema version 5, this mxspec reads 4"),
        (b'{"schema_version": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_invalid_manifests(bundle_path: Path, text: bytes, says: str) -> None:
    (bundle_path / "manifest.json").write_bytes(text)
    assert says in refused(bundle_path)


def set_tensor(**values: object) -> Callable[[Json], object]:
    return lambda manifest: manifest["models"]["target"]["tensors"][1].update(values)


def set_model(name: str, **values: object) -> Callable[[Json], object]:
    return lambda manifest: manifest["models"][name].update(values)


def table(name: str, *, sources: Sequence[str] = (), rows: int = 64) -> list[Json]:
    kind, size = ("fp16", 2) if sources else ("float32", 4)
    entry = {"name": name, "sources": sources, "format": kind, "shape": [rows, 8], "offset": 0, "source_bytes": 0}
    return [{**entry, "bytes": 8 * rows * size}]


def guesses(file: str = "target.onnx") -> Json:
    return {"file": file, "text_sha256": "0" * 64, "tokens": 3}


def encoder(graph: str = "target.onnx", context_length: int = 64) -> Json:
    return {"graph": graph, "layers": 1, "context_length": context_length}


def with_encoders(manifest: Json, context_length: int, decoder_start: Sequence[int] = (0,)) -> object:
    """An encoder for each model, a table by position, and what a decoder begins with."""
    for name, model in manifest["models"].items():
        model.update(encoder=encoder(f"{name}_encoder.onnx", context_length), tensors=table("cos"))
        manifest["files"][f"{name}_encoder.onnx"] = manifest["files"][f"{name}.onnx"]
    return manifest["tokenizer"].update(decoder_start=list(decoder_start))


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda m: m.update(k_maks=3), "unknown key 'k_maks' (did you mean 'k_max'?)"),
        (lambda m: m["tokenizer"].update(vocab=3), "unknown key 'tokenizer.vocab' (did you mean 'vocab_size'?)"),
        (set_tensor(ofset=3), "(did you mean 'offset'?)"),
        (lambda m: m.update(k_max=0), "k_max"),
        (lambda m: m.update(k_max="4"), "k_max"),
        (lambda m: m.update(k_max=4.5), "k_max"),
        (lambda m: m.update(k_max=10**9), "k_max: expected at most 64, got 1000000000"),
        (lambda m: m["sampling"].update(temprature=1), "(did you mean 'temperature'?)"),
        (lambda m: m["sampling"].update(temperature=-0.1), "sampling.temperature"),
        (lambda m: m["sampling"].update(top_k=-1), "sampling.top_k"),
        (lambda m: m["sampling"].update(top_p=0), "sampling.top_p"),
        (lambda m: m["sampling"].update(min_p=1.5), "sampling.min_p"),
        (lambda m: m["sampling"].update(typical_p=1.5), "sampling.typical_p"),
        (lambda m: m["sampling"].update(repetition_penalty=0), "sampling.repetition_penalty"),
        (lambda m: m.update(generation={"suppressed": [40]}), "tokenizer: id 40 of 40"),
        (lambda m: m.update(generation={"bad_words": [[1, 2], []]}), "generation.bad_words.1"),
        (lambda m: m.update(generation={"forced": [1]}), "unknown key 'generation.forced'"),
        (lambda m: m["models"].pop("target"), "'target' is missing"),
        (lambda m: m["models"].update(tarjet=m["models"].pop("target")), "tarjet"),
        (set_model("draft", graph="target.onnx"), "already belongs to target"),
        (set_model("draft", graph="other.onnx"), "'other.onnx' is not in files"),
        (set_model("draft", layers=-1), "models.draft.layers: expected more than 0, got -1"),
        (set_model("draft", caches="int8"), "expected 'float32', 'float16' or 'mxint8', got 'int8'"),
        (set_model("draft", specializations=[]), "expected to have at least 1 item"),
        (
            set_model("target", experts={"count": 3, "chosen": 4, "tensors": ["up"]}),
            "chosen: got 4 experts for a token, expected at most 3",
        ),
        (set_model("target", experts={"count": 3, "chosen": 2, "tensors": ["gate"]}), "experts: no tensor 'gate'"),
        (
            set_model("target", experts={"count": 2, "chosen": 1, "tensors": ["up"]}),
            "experts: tensor 'up' has 17 rows, expected a multiple of 2",
        ),
        (set_model("draft", specializations=[65]), "specialization 65 in a context of 64"),
        (
            set_model("target", context_length=10**12, tensors=table("rotary_emb.cos")),
            "context_length 1000000000000, but table 'rotary_emb.cos' has 64 rows",
        ),
        (
            set_model("target", context_length=65, tensors=table("wpe", sources=["wpe"], rows=39)),
            "context_length 65, but table 'wpe' has 39 rows",
        ),
        (set_model("draft", borrowed=["cos"]), "draft: borrows 'cos', which is not a computed"),
        (set_model("draft", borrowed=["norm"]), "draft: borrows 'norm', which is not a computed"),
        (set_model("target", borrowed=["cos"], tensors=table("cos")), "target: borrows 'cos'"),
        (
            lambda m: (
                m["models"]["target"].update(context_length=32, tensors=table("cos", rows=32)),
                m["models"]["draft"].update(borrowed=["cos"]),
            ),
            "models.draft: context_length 64, but table 'cos' has 32 rows",
        ),
        (lambda m: m.update(guesses={"ngrams": guesses()}), "guesses.ngrams"),
        (lambda m: m.update(guesses={"ngram": guesses(file="x")}), "guesses.ngram: file 'x' is not in files"),
        (lambda m: m.update(guesses={"ngram": guesses()}), "file 'target.onnx' already belongs to target"),
        (lambda m: m["recipe"].update(tasks={"a": 1}), "recipe.tasks: expected a text for each name"),
        (lambda m: m["recipe"].update(tasks=None), "recipe.tasks: expected a text for each name"),
        (set_model("target", vocab_size=39), "39 logits for a tokenizer of 40 ids"),
        (lambda m: m["tokenizer"].update(eos_token_ids=[40]), "id 40 of 40"),
        (
            lambda m: (with_encoders(m, 64), m["models"]["draft"].update(encoder=None)),
            "models.draft: has no encoder, and others of the bundle have one",
        ),
        (set_model("draft", encoder=encoder("x")), "draft: file 'x' is not in files"),
        (set_model("draft", encoder=encoder()), "'target.onnx' already belongs to target"),
        (lambda m: with_encoders(m, 65), "context_length 65, but table 'cos' has 64 rows"),
        (lambda m: with_encoders(m, 64, []), "decoder_start: got [], expected the ids that a decoder begins with"),
        (lambda m: with_encoders(m, 64, [40]), "id 40 of 40"),
        (lambda m: m["tokenizer"].update(decoder_start=[0]), "decoder_start: got [0], no encoder to go with it"),
        (lambda m: m["tokenizer"].update(sha256="0" * 64), "not the hash that files gives"),
        (lambda m: m["files"]["target.onnx"].update(bytes=7), "60 bytes, the manifest says 7"),
        (lambda m: m["files"].update({"more.onnx": m["files"]["target.onnx"]}), "'more.onnx' is missing"),
        (lambda m: m["files"].pop("tokenizer.json"), "not the hash that files gives for tokenizer.json"),
        (lambda m: m["files"].pop("draft.onnx"), "'draft.onnx' is not in files"),
        (set_tensor(name="other"), "'other' of the manifest is not in the file"),
        (set_tensor(name="padding.1"), "'padding.1' of the manifest is not in the file"),
        (set_tensor(name="embedding"), "'embedding' appears twice"),
        (set_tensor(offset=0), "the manifest says 132 at 0"),
        (set_tensor(offset=10**30), "132 bytes at"),
        (set_tensor(offset=-64), "offset"),
        (set_tensor(bytes=64), "the manifest says 64 at"),
        (set_tensor(format="float23"), "unknown format 'float23'"),
        (set_tensor(format="fp16"), "is stored as F16"),
        (set_tensor(format="mxfp6_e3m2"), "two dimensions"),
        (set_tensor(shape=[34]), "is stored as F32 [34]"),
        (set_tensor(error=-1.0), "error"),
        (lambda m: m["models"]["target"]["tensors"].pop(), "'down' is not in the manifest"),
    ],
)
def test_manifests_that_disagree_with_the_files(bundle_path: Path, edit: Callable[[Json], object], says: str) -> None:
    edit_manifest(bundle_path, edit)
    assert says in refused(bundle_path)


@pytest.mark.parametrize("name", ["../target.onnx", "/etc/passwd", "a/b", "..", ".", "", "manifest.json", ".x", "a\0b"])
def test_paths_that_escape(bundle_path: Path, name: str) -> None:
    edit_manifest(bundle_path, lambda manifest: manifest["files"].update({name: manifest["files"]["target.onnx"]}))
    assert "is not the plain name" in refused(bundle_path)


def test_links_out_of_the_bundle(bundle_path: Path) -> None:
    outside = bundle_path.parent / "outside.onnx"
    (bundle_path / "target.onnx").rename(outside)
    (bundle_path / "target.onnx").symlink_to(outside)
    assert "outside the bundle" in refused(bundle_path)


def test_a_manifest_out_of_the_bundle(bundle_path: Path) -> None:
    outside = bundle_path.parent / "manifest.json"
    (bundle_path / "manifest.json").rename(outside)
    (bundle_path / "manifest.json").symlink_to(outside)
    assert "'manifest.json' is a link to" in refused(bundle_path)


@pytest.mark.parametrize("name", ["manifest.json", "target.onnx", "draft.safetensors"])
def test_links_that_lead_nowhere(bundle_path: Path, name: str) -> None:
    for target in (name, "missing"):  # a loop, and a hole
        (bundle_path / name).unlink()
        (bundle_path / name).symlink_to(target)
        assert f"file {name!r} is a broken link" in refused(bundle_path)


def test_a_loop_of_links_in_place_of_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "x.bundle").symlink_to("x.bundle")
    refused(tmp_path / "x.bundle")


def test_a_file_in_place_of_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "x.bundle").touch()
    assert "is a file, and a bundle a directory" in refused(tmp_path / "x.bundle")


def test_a_name_too_long_for_any_file(tmp_path: Path) -> None:
    assert "File name too long" in refused(tmp_path / ("x" * 300))


@pytest.mark.parametrize("name", ["k_max", "other"])
def test_a_manifest_of_many_keys_takes_no_quadratic_time(bundle_path: Path, name: str) -> None:
    """429 kB of them took 15 s."""
    pairs = [*(f'"key{i}": 1' for i in range(50_000)), f'"{name}": 3', '"k_max": 4']
    (bundle_path / "manifest.json").write_text("{" + ",".join(pairs) + "}")
    began = time.thread_time()
    assert ("'k_max' appears twice" if name == "k_max" else "schema version None") in refused(bundle_path)
    assert time.thread_time() - began < 1


def test_a_folder_in_place_of_a_file(bundle_path: Path) -> None:
    (bundle_path / "target.onnx").unlink()
    (bundle_path / "target.onnx").mkdir()
    assert "is not a file" in refused(bundle_path)


def test_surplus_files(bundle_path: Path) -> None:
    (bundle_path / "surplus").touch()
    assert "'surplus' is not in the manifest" in refused(bundle_path)


@pytest.mark.parametrize("name", ["target.onnx", "draft.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("change", [-1, 1])
def test_files_cut_or_lengthened(bundle_path: Path, name: str, change: int) -> None:
    content = (bundle_path / name).read_bytes()
    (bundle_path / name).write_bytes(content[:change] if change < 0 else content + b"\0")
    assert f"'{name}': {len(content) + change} bytes" in refused(bundle_path)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 100_000_001, 0])
def test_header_lengths(bundle_path: Path, length: int) -> None:
    file = bundle_path / "target.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + file.read_bytes()[8:])
    assert "target.safetensors: header" in refused(bundle_path)


def test_a_weights_file_too_short_for_a_header(bundle_path: Path) -> None:
    (bundle_path / "target.safetensors").write_bytes(b"1234")
    edit_manifest(bundle_path, lambda manifest: manifest["files"]["target.safetensors"].update(bytes=4))
    assert "cut short" in refused(bundle_path)


def shift(name: str, begin: int, end: int) -> Callable[[Json], object]:
    def edit(header: Json) -> None:
        offsets = header[name]["data_offsets"]
        header[name]["data_offsets"] = [offsets[0] + begin, offsets[1] + end]

    return edit


@pytest.mark.parametrize(
    ("edit", "data_bytes", "says"),
    [
        (shift("down", -64, -64), -64, "overlaps 'up'"),
        (shift("down", 64, 64), 64, "leaves a hole of 64 bytes after 'up'"),
        (shift("down", 0, 1), 1, "but U8[3, 1024] takes 3072"),
        (lambda header: None, 64, "tensors end at"),
        (lambda header: None, -64, "tensors end at"),
        (lambda header: header["up"].update(dtype="U9"), 0, "unknown dtype 'U9'"),
        (lambda header: header["up"].update(shape=[-2, -800]), 0, "must be counts"),
        (lambda header: header["up"].update(shape=[2, 1e99]), 0, "must be counts"),
        (lambda header: header["up"].update(shape=[2, True]), 0, "must be counts"),
        (lambda header: header["up"].update(shape=800), 0, "expected dtype, shape and data_offsets"),
        (lambda header: header["up"].update(x=1), 0, "expected dtype, shape and data_offsets"),
        (lambda header: header.pop("padding.1"), 0, "leaves a hole"),
        (lambda header: header.update(nine=header.pop("up")), 0, "'up' of the manifest is not in the file"),
        (lambda header: header["up"].update(shape=[1, 1600]), 0, "is stored as U8 [2, 800]"),
    ],
)
def test_headers_that_disagree_with_the_file(
    bundle_path: Path, edit: Callable[[Json], object], data_bytes: int, says: str
) -> None:
    edit_header(bundle_path, edit, data_bytes=data_bytes)
    assert says in refused(bundle_path)


def test_a_header_longer_than_any_honest_one(bundle_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file, "HEADER_LIMIT", 100)
    assert "target.safetensors: header" in refused(bundle_path)


def test_a_manifest_longer_than_any_honest_one(bundle_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_module, "MANIFEST_LIMIT", 100)
    assert "at most 100 expected" in refused(bundle_path)


def test_tensors_off_the_alignment(bundle_path: Path) -> None:
    file = bundle_path / "target.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    file.write_bytes((length + 8).to_bytes(8, "little") + content[8 : 8 + length] + b" " * 8 + content[8 + length :])

    def shifted(manifest: Json) -> None:
        manifest["files"]["target.safetensors"]["bytes"] += 8
        for tensor in manifest["models"]["target"]["tensors"]:
            tensor["offset"] += 8

    edit_manifest(bundle_path, shifted)
    assert "is not a multiple of 64" in refused(bundle_path)


@pytest.mark.parametrize("text", [b"[]", b"{", b'{"a":1,"a":1}', b"null", b'"' * 5])
def test_invalid_headers(bundle_path: Path, text: bytes) -> None:
    file = bundle_path / "target.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    file.write_bytes(content[:8] + text.ljust(length) + content[8 + length :])
    assert "header" in refused(bundle_path)


@pytest.mark.parametrize("name", ["target.onnx", "draft.safetensors", "tokenizer.json"])
def test_a_flipped_bit_is_found_by_verify(bundle_path: Path, name: str) -> None:
    content = bytearray((bundle_path / name).read_bytes())
    content[-5] ^= 1
    (bundle_path / name).write_bytes(content)
    bundle = Bundle.open(bundle_path)
    with pytest.raises(BundleError, match=f"SHA-256 differs for {name};"):
        bundle.verify()
