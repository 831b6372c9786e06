"""Checkpoint names against parameter names: transformers' rules, ties, and what is left over."""

from __future__ import annotations

import pytest
from transformers import AutoConfig, PreTrainedModel
from transformers.core_model_loading import WeightRenaming

from mxspec.compile.checkpoint import names
from mxspec.compile.checkpoint.names import name_parameters, resolve_names, tied_names
from mxspec.formats.errors import CheckpointError, UnsupportedModelError

SIZES = {"vocab_size": 64, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def model(kind: str, **settings: object) -> PreTrainedModel:
    return name_parameters(AutoConfig.for_model(kind, **SIZES, **settings))


def gpt2() -> PreTrainedModel:
    return model("gpt2", n_embd=32, n_layer=1, n_head=2)


def test_names_as_saved() -> None:
    untied = model("llama", **LLAMA, tie_word_embeddings=False)
    own = list(untied.state_dict())
    resolved = resolve_names(untied, own, own)
    assert resolved.tensor_of == {name: name for name in own}
    assert resolved.ignored == ()


def test_the_original_gpt2_names_have_no_prefix_and_hold_masks() -> None:
    wanted = [name for name, _ in gpt2().named_parameters()]
    tensors = [name.removeprefix("transformer.") for name in wanted] + ["h.0.attn.bias"]
    resolved = resolve_names(gpt2(), tensors, wanted)
    assert resolved.tensor_of["transformer.h.0.attn.c_attn.weight"] == "h.0.attn.c_attn.weight"
    assert resolved.ignored == ("h.0.attn.bias",)


def test_a_base_model_s_checkpoint_gets_its_prefix() -> None:
    tied = model("llama", **LLAMA, tie_word_embeddings=True)
    wanted = [name for name, _ in tied.named_parameters()]
    resolved = resolve_names(tied, [name.removeprefix("model.") for name in wanted], wanted)
    assert resolved.tensor_of[EMBEDDING] == "embed_tokens.weight"


@pytest.mark.parametrize("held", [EMBEDDING, HEAD])
def test_tied_parameters_stand_in_for_each_other(held: str) -> None:
    tied = model("llama", **LLAMA, tie_word_embeddings=True)
    assert tied_names(tied)[EMBEDDING] == {EMBEDDING, HEAD}
    assert resolve_names(tied, [held], [EMBEDDING]).tensor_of == {EMBEDDING: held}


def test_untied_parameters_do_not() -> None:
    untied = model("llama", **LLAMA, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"no tensor for lm_head\.weight"):
        resolve_names(untied, [EMBEDDING], [HEAD])


def test_the_error_names_missing_parameters_and_existing_tensors() -> None:
    with pytest.raises(CheckpointError, match=r"no tensor for transformer\.wte\.weight; it has a, b … \(3 in all\)"):
        resolve_names(gpt2(), ["a", "b", "c"], ["transformer.wte.weight"])


def test_parameters_that_transformers_computes_from_several_tensors() -> None:
    experts = model(
        "mixtral", **LLAMA, num_local_experts=2, num_experts_per_tok=1, num_key_value_heads=2, sliding_window=None
    )
    wanted = [name for name, _ in experts.named_parameters() if "experts" in name]
    tensors = [f"model.layers.0.block_sparse_moe.experts.{i}.w{j}.weight" for i in range(2) for j in (1, 2, 3)]
    with pytest.raises(UnsupportedModelError, match="not in the checkpoint as it is"):
        resolve_names(experts, tensors, wanted)


def test_no_language_model() -> None:
    with pytest.raises(UnsupportedModelError, match="vit"):
        name_parameters(AutoConfig.for_model("vit"))


def test_two_tensors_for_one_parameter() -> None:
    with pytest.raises(CheckpointError, match=r"'wte\.weight' and 'transformer\.wte\.weight' are both"):
        resolve_names(gpt2(), ["wte.weight", "transformer.wte.weight"], ["transformer.wte.weight"])


def test_a_rule_that_would_rename_a_right_name_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [WeightRenaming("embed_tokens", "word_embeddings"), WeightRenaming("output_layer", "lm_head")]
    monkeypatch.setattr(names, "get_model_conversion_mapping", lambda model: rules)
    tensors = [EMBEDDING, "output_layer.weight"]
    resolved = resolve_names(model("llama", **LLAMA, tie_word_embeddings=False), tensors, [EMBEDDING, HEAD])
    assert resolved.tensor_of == {EMBEDDING: EMBEDDING, HEAD: "output_layer.weight"}
