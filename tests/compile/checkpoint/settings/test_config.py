"""Hostile and strange config.json files: never code, never a question, one line that names the key."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from mxspec.compile.checkpoint.names import name_parameters
from mxspec.compile.checkpoint.settings.config import load_config
from mxspec.formats.errors import CheckpointError, MxspecError, UnsupportedModelError

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}


def write(folder: Path, settings: object) -> Path:
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def refused(folder: Path, kind: type[MxspecError] = CheckpointError) -> str:
    with pytest.raises(kind) as caught:
        load_config(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


@pytest.mark.parametrize("model_type", ["llama", "made_up"])
def test_a_checkpoints_code_is_never_run_and_never_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str
) -> None:
    """transformers asks on standard input whether to run it, and `echo y |` was enough."""
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    write(tmp_path, LLAMA | {"model_type": model_type, "auto_map": {"AutoConfig": "own.Own"}})
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 10))
    if model_type == "llama":
        assert load_config(tmp_path).hidden_size == 64
    else:
        assert "never run" in refused(tmp_path, UnsupportedModelError)
    assert not (tmp_path / "ran").exists()


def test_dispatch_keys_are_ignored(tmp_path: Path) -> None:
    keys = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal", "experts_implementation")
    plain = load_config(write(tmp_path, LLAMA))
    told = load_config(write(tmp_path, LLAMA | dict.fromkeys((*keys, "_experts_implementation"), "made_up/kernel")))
    assert told.to_dict() == plain.to_dict()
    assert told._attn_implementation is None


def test_settings_are_those_that_transformers_reads(tmp_path: Path) -> None:
    settings = LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}, "torch_dtype": "float16", "own_key": 3}
    theirs = AutoConfig.from_pretrained(write(tmp_path, settings))
    assert load_config(tmp_path).to_dict() | {"_name_or_path": str(tmp_path)} == theirs.to_dict()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": "64"}, "hidden_size"),
        ({"intermediate_size": None}, "config.json: Field 'intermediate_size' expected int"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
        ({"vocab_size": 4096.0}, "vocab_size"),
        ({"vocab_size": 10**30}, "vocab_size"),
        ({"hidden_act": "made_up"}, "hidden_act: transformers has no function 'made_up'"),
        ({"rope_scaling": {"rope_type": "made_up"}}, "rope_type: got 'made_up', expected one of default"),
        ({"rope_parameters": {"rope_type": ["x"]}}, "rope_type"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "config.json: The hidden size (64) is not a multiple"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3 do not divide 4 attention heads"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: got 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: got 1000000000, expected 1 to 512"),
        ({"architectures": 5}, "architectures: got 5, expected a list of names"),
        ({"architectures": [None]}, "architectures"),
        ({"head_dim": -1}, "head_dim"),
        ({"to_dict": 3}, "'to_dict' is not a setting"),
        ({"from_dict": 3}, "'from_dict' is not a setting"),
        ({"attribute_map": {"hidden_size": "x"}}, "'attribute_map' is not a setting"),
        ({"model_type": None}, "model_type: got None"),
        ({"model_type": 3}, "model_type: got 3"),
        ({"model_type": "gpt2", "n_layer": 0}, "n_layer: got 0"),
        ({"model_type": "gpt2", "num_attention_heads": 7, "num_key_value_heads": 7}, "7 heads do not divide"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"rms_norm_eps": {"__float__": "Infinity"}}, "rms_norm_eps: got 'Infinity', expected a finite number"),
        ({"rope_parameters": {"rope_theta": {"__float__": "NaN"}}}, "rope_theta: got 'NaN', expected a finite number"),
        ({"rms_norm_eps": math.inf}, "rms_norm_eps: got 'Infinity', expected a finite number"),
        ({"rope_parameters": {"rope_theta": math.nan}}, "rope_theta: got 'NaN', expected a finite number"),
        ({"layer_norm_limits": [0.0, math.inf]}, "layer_norm_limits: got 'Infinity'"),
        ({"quantization_config": [1]}, "quantization_config: got [1], expected an object"),
    ],
)
def test_values_that_make_no_sense(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    message = refused(write(tmp_path, LLAMA | changes))
    assert says in message
    assert str(tmp_path / "config.json") in message


@pytest.mark.parametrize("content", [b"", b"[]", b"3", b'{"hidden_size": 1e999}', b"\xff", b"[" * 9999])
def test_files_that_are_no_object(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    refused(tmp_path)


@pytest.mark.parametrize("infinite", [math.inf, {"__float__": "Infinity"}])
def test_an_infinite_limit_that_nothing_reads_is_accepted(tmp_path: Path, infinite: object) -> None:
    """transformers writes such a time_step_limit into the configs of Granite 4, of which only some layers read it."""
    assert load_config(write(tmp_path, LLAMA | {"time_step_limit": [0.0, infinite]})).hidden_size == 64
    granite = LLAMA | {"model_type": "granitemoehybrid", "time_step_limit": [0.0, infinite]}
    assert "layers of linear_attention" in refused(write(tmp_path, granite), UnsupportedModelError)


def test_an_unknown_model_type(tmp_path: Path) -> None:
    assert "no model type" in refused(write(tmp_path, {"model_type": "made_up"}), UnsupportedModelError)


@pytest.mark.parametrize(
    ("model_type", "what"),
    [
        ("bert", "a masked language model, an encoder"),
        ("bart", "the decoder of an encoder-decoder, without its encoder"),
        ("whisper", "a model of speech"),
        ("mamba", "a model with layers of linear_attention"),
        ("mamba2", "a model with layers of linear_attention"),
        ("mllama", "a model of images and text"),
        ("clip", "a model that compares images with text"),
        ("vit", "a model of images"),
        ("wav2vec2", "a model of sound"),
        ("llama4", "a model with layers of chunked_attention"),
        ("encodec", "no language model"),
    ],
)
def test_models_of_other_kinds_are_called_by_their_kind(tmp_path: Path, model_type: str, what: str) -> None:
    settings = {"is_encoder_decoder": False} if model_type == "bart" else {}
    said = refused(write(tmp_path, {"model_type": model_type, **settings}), UnsupportedModelError)
    assert what in said
    assert "not supported" in said


def test_labels_take_no_memory(tmp_path: Path) -> None:
    load_config(write(tmp_path, LLAMA | {"num_labels": 10**9}))


def test_a_model_that_cannot_be_built_is_one_line(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, LLAMA | {"model_type": "glm", "pad_token_id": 128}))
    with pytest.raises(UnsupportedModelError, match=r"^glm: transformers cannot build it: .{1,200}$"):
        name_parameters(config)
