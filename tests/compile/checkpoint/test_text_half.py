"""Checkpoints of a language model and one for images: the text half is found, by configuration and by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.names import name_parameters, resolve_names
from mxspec.compile.checkpoint.settings.config import load_config
from mxspec.compile.checkpoint.tensors.tensor import as_float32
from tests.compile.conftest import TINY

VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
WRAPPED = {
    "gemma3": ({"mm_tokens_per_image": 4}, "gemma3", "siglip_vision_model"),
    "mistral3": ({"tie_word_embeddings": False}, "mistral", "pixtral"),
}


def make_wrapped(name: str) -> PreTrainedModel:
    settings, text, vision = WRAPPED[name]
    model_type, text_settings = TINY[text]
    config = AutoConfig.for_model(
        name,
        text_config={"model_type": model_type, **text_settings},
        vision_config={"model_type": vision, **VISION},
        **settings,
    )
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    return model.eval()


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model.", "model."])
def test_each_way_of_naming_is_known(prefix: str) -> None:
    half = name_parameters(make_wrapped("mistral3").config.text_config)
    names = [name for name, _ in half.named_parameters()]
    stored = {name: name.replace("model.", prefix, 1) for name in names}
    assert resolve_names(half, stored.values(), names).tensor_of == stored


@pytest.mark.parametrize("name", WRAPPED)
def test_the_text_half_gives_the_logits_of_the_whole(name: str, tmp_path: Path) -> None:
    whole = make_wrapped(name)
    whole.save_pretrained(tmp_path)
    config = load_config(tmp_path)
    assert config.model_type == TINY[WRAPPED[name][1]][0]
    half = name_parameters(config)
    with Checkpoint(tmp_path) as checkpoint:
        resolved = resolve_names(half, checkpoint.tensors, [name for name, _ in half.named_parameters()])
        tensors = {name: checkpoint.tensors[source] for name, source in resolved.tensor_of.items()}
        values = {name: as_float32(t.read_rows(0, t.shape[0]), t.dtype) for name, t in tensors.items()}
    half = type(half)._from_config(config, dtype=torch.float32).eval()
    half.load_state_dict({name: torch.from_numpy(value) for name, value in values.items()}, strict=False)
    half.tie_weights()
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        expected, got = (model(input_ids=ids).logits for model in (whole, half))
    torch.testing.assert_close(got, expected)
    assert any("vision" in tensor for tensor in resolved.ignored)
