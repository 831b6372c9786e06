"""Heads that do not fit their target, or whose files are wrong: one line each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mxspec.compile.checkpoint.settings.config import make_config
from mxspec.compile.heads.eagle3 import Eagle3Config
from mxspec.formats.errors import CheckpointError, MxspecError, UnsupportedModelError
from tests.compile.commands.test_speccompile import failed, speccompile
from tests.compile.heads.make_head import ROWS, TARGET_LOGITS, save_head
from tests.compile.heads.plain_head import IDS
from tests.conftest import save_checkpoint, save_t5

LAYERS = 6


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("refused") / "target", seed=5, logits=TARGET_LOGITS, layers=LAYERS)


@pytest.fixture
def refuse(target: Path, tmp_path: Path) -> Callable[..., str]:
    def refuse(*options: object, pair_with: Path = target, **head: Any) -> str:
        folder = tmp_path / "head"
        if not folder.exists():
            save_head(folder, **head)
        return failed(speccompile(pair_with, "--draft", folder, "-o", tmp_path / "x.bundle", *options))

    return refuse


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (
            {"target_width": 32, "own_embedding": True},
            "target_hidden_size: got 32, but the target's is 64: the head belongs to another target",
        ),
        (
            {"form": "nested", "ids": [0, 2, 5]},
            "the head reads states that enter layers 1, 3, 6, but the target has layers 0 to 5",
        ),
        ({"vocab_size": 300}, "vocab_size: got 300, but the target's is 272"),
        (
            {"width": 32, "target_width": 64},
            "has no embed_tokens.weight, and the target's has 64 columns where the head's has 32",
        ),
    ],
)
def test_a_head_of_another_target(refuse: Callable[..., str], head: dict[str, Any], said: str) -> None:
    assert said in refuse(**head)


def test_a_target_with_an_encoder(refuse: Callable[..., str], tmp_path: Path) -> None:
    assert "is an encoder-decoder, but the draft" in refuse(pair_with=save_t5(tmp_path / "t5", seed=1))


def test_a_head_as_target(target: Path, tmp_path: Path) -> None:
    head = save_head(tmp_path / "head")
    line = failed(speccompile(head, "-o", tmp_path / "x.bundle"))
    assert line == f"error: {head} is an EAGLE-3 head, which drafts for a target: name it with --draft"


def test_a_trimmed_head_is_not_trimmed_again(refuse: Callable[..., str]) -> None:
    said = "draft.vocabulary: the draft is an EAGLE-3 head, whose checkpoint names its tokens"
    assert said in refuse("--draft-vocabulary", 9)


Change = Callable[[dict[str, Tensor]], dict[str, Tensor | None]]  # None for a tensor that goes
Q = "midlayer.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: {"d2t": None}, "tensor 'd2t' is missing, which says what the 48 rows of the head are of 272 tokens"),
        (lambda t: {"d2t": t["d2t"].float()}, "tensor 'd2t' of model.safetensors is F32 [48], expected int64[48]"),
        (lambda t: {"d2t": t["d2t"][:-1].clone()}, "tensor 'd2t' of model.safetensors is I64 [47], expected int64[48]"),
        (  # absolute ids, as llama.cpp stores them
            lambda t: {"d2t": t["d2t"] + 2 * torch.arange(ROWS) + 100},
            "expected offsets that make 48 different ids from 0 to 271",
        ),
        (lambda t: {"d2t": torch.cat((t["d2t"][:1], t["d2t"][:1] - 1, t["d2t"][2:]))}, "47 different ones"),
        (
            lambda t: {"fc.weight": t["fc.weight"][:, :128].clone()},
            "tensor 'fc.weight' of model.safetensors has shape [64, 128], but fc.weight is [64, 192]",
        ),
        (
            lambda t: {Q: t[Q][:, :64].clone()},
            "has shape [64, 64], but layers.0.self_attn.q_proj.weight is [64, 128]",
        ),
        (
            lambda _: {"layers.1.input_layernorm.weight": torch.ones(64)},
            "tensor 'layers.1.input_layernorm.weight' has no place in an EAGLE-3 head",
        ),
        (
            lambda _: {"input_norm.weight": torch.ones(192)},
            "tensor 'input_norm.weight' has no place in an EAGLE-3 head",
        ),
        (
            lambda _: {"midlayer.hidden_norm.weight": None},
            "the checkpoint has no tensor for layers.0.hidden_norm.weight",
        ),
    ],
)
def test_damaged_tensors(refuse: Callable[..., str], tmp_path: Path, change: Change, said: str) -> None:
    change_tensors(save_head(tmp_path / "head"), change)
    assert said in refuse()


def change_tensors(folder: Path, change: Change) -> None:
    tensors = load_file(folder / "model.safetensors")
    changed = {name: value for name, value in (tensors | change(tensors)).items() if value is not None}
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})


def settings_of(folder: Path, **changed: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found | changed


@pytest.mark.parametrize(
    ("form", "changed", "said"),
    [
        ("nested", {"eagle_config": {IDS: [1, "2", 3]}}, f"{IDS}: got "),
        ("nested", {"eagle_config": {IDS: [-2, 1, 2]}}, "expected a list of numbers of layers"),
        ("plain", {IDS: []}, "expected a list of numbers of layers"),
        ("plain", {"num_hidden_layers": 2}, "num_hidden_layers: got 2, expected a head of 1 layer"),
        ("plain", {"layer_types": ["sliding_attention"]}, "layer_types: got ['sliding_attention'], expected ['full_"),
        ("plain", {"draft_vocab_size": "many"}, "draft_vocab_size: got 'many', expected 1 to"),
        ("plain", {"norm_output": 1}, "norm_output: got 1, expected true or false"),
        ("speculators", {"fc_norm": True, "norm_before_fc": True}, "got norm_before_fc and fc_norm, expected one"),
        (
            "speculators",
            {"speculators_model_type": "dflash"},
            "got 'dflash', expected 'eagle3'",
        ),
        ("speculators", {"speculators_config": {"algorithm": "eagle"}}, "algorithm: got 'eagle', expected 'eagle3'"),
        ("speculators", {"transformer_layer_config": 3}, "transformer_layer_config: got 3, expected an object"),
        (
            "speculators",
            {"transformer_layer_config": {"model_type": "gemma2"}},
            "transformer_layer_config.model_type: got 'gemma2', expected 'llama' or 'qwen3'",
        ),
        ("plain", {"architectures": ["LlamaForCausalLMEagle"]}, "LlamaForCausalLMEagle is a trained draft of another"),
    ],
)
def test_wrong_settings(tmp_path: Path, form: str, changed: dict[str, Any], said: str) -> None:
    settings = settings_of(save_head(tmp_path / "head", form=form), **changed)
    with pytest.raises(MxspecError) as caught:
        make_config(settings, "config.json")
    assert isinstance(caught.value, CheckpointError | UnsupportedModelError)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("form", "ids", "entered"),
    [("nested", [1, 11, 21], [2, 12, 22]), ("plain", [2, 12, 22], [2, 12, 22]), ("speculators", [0, 5], [0, 5])],
)
def test_nested_ids_are_outputs_and_others_inputs(
    tmp_path: Path, form: str, ids: list[int], entered: list[int]
) -> None:
    config = make_config(settings_of(save_head(tmp_path / "head", form=form, ids=ids)), "config.json")
    assert isinstance(config, Eagle3Config)
    assert config.hidden_state_outputs == entered
    assert config.hidden_state_count == len(ids)
