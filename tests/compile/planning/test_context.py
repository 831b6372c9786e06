"""How many positions each model is compiled for."""

from __future__ import annotations

import pytest
from transformers import BartConfig, BloomConfig, LlamaConfig, Phi3Config, PreTrainedConfig, T5Config

from mxspec.compile.planning.context import choose_contexts, rope_warning, source_length
from mxspec.formats.errors import RecipeError, UnsupportedModelError
from mxspec.recipes.recipe import DraftRecipe, Recipe, TargetRecipe

RECIPE = Recipe(name="pair", target=TargetRecipe(checkpoint="t"), draft=DraftRecipe(checkpoint="d"), k_max=4)


def knows(positions: int | None) -> PreTrainedConfig:
    """Of a model that says how many, or of one that has no positions."""
    return BloomConfig() if positions is None else LlamaConfig(max_position_embeddings=positions)


@pytest.mark.parametrize(
    ("asked", "target", "draft", "expected"),
    [
        (None, 64, 64, (64, 64)),
        (None, 64, 32, (64, 32)),
        (None, 32, 64, (32, 32)),
        (48, 64, 32, (48, 32)),
        (16, 64, 32, (16, 16)),
        (16, None, None, (16, 16)),
    ],
)
def test_the_draft_may_know_less(
    asked: int | None, target: int | None, draft: int | None, expected: tuple[int, int]
) -> None:
    contexts = choose_contexts(
        RECIPE.with_changes(context_length=asked), {"target": knows(target), "draft": knows(draft)}
    )
    assert (contexts["target"], contexts["draft"]) == expected


def test_impossible_settings() -> None:
    message = (
        "got 65, but the target knows 64 positions; .* at most 64; for more, its config.json needs rope_scaling and"
    )
    with pytest.raises(RecipeError, match=message):
        choose_contexts(RECIPE.with_changes(context_length=65), {"target": knows(64)})
    with pytest.raises(RecipeError, match="k_max: got 4, expected less than the context length, 4"):
        choose_contexts(RECIPE.with_changes(context_length=4), {"target": knows(64)})
    with pytest.raises(UnsupportedModelError, match="does not give its number of positions"):
        choose_contexts(RECIPE, {"target": knows(None)})


def test_tables_of_positions_are_bounded() -> None:
    """Of heads of 128, in float32: 2^26 positions would fill 34 GB."""
    with pytest.raises(RecipeError, match=r"positions take 34\.4 GB, .* with --context-length 1048576 or less"):
        choose_contexts(RECIPE, {"target": knows(1 << 26)})
    few = RECIPE.with_changes(context_length=1 << 20)
    assert choose_contexts(few, {"target": knows(1 << 26)}) == {"target": 1 << 20}
    assert choose_contexts(RECIPE.with_changes(context_length=1 << 26), {"target": knows(None)}) == {"target": 1 << 26}


def test_frequencies_that_the_context_chooses_are_a_warning() -> None:
    """transformers has two sets of them for LongRoPE, and chooses by the length of the text at hand."""
    factors = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **factors}
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "original_max_position_embeddings": 4096, "pad_token_id": 0}
    config = Phi3Config(**sizes, max_position_embeddings=131072, rope_parameters=rope)
    said = rope_warning("target", config, 131072)
    assert said is not None
    assert "texts of up to 4096 tokens" in said
    assert said.endswith("compile with --context-length 4096")
    assert rope_warning("target", config, 4096) is None
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert rope_warning("target", LlamaConfig(rope_parameters=dynamic), 2048) is None
    assert rope_warning("target", T5Config(), 512) is None


@pytest.mark.parametrize(("asked", "expected"), [(None, (512, 64)), (32, (32, 32)), (64, (64, 64)), (100, (100, 64))])
def test_sources_of_models_that_know_positions_and_of_t5(asked: int | None, expected: tuple[int, int]) -> None:
    recipe = RECIPE.with_changes(source_length=asked)
    configs = T5Config(), BartConfig(max_position_embeddings=64)
    assert tuple(source_length(recipe, config) for config in configs) == expected
    assert source_length(recipe, knows(64)) is None


def test_texts_of_t5() -> None:
    assert choose_contexts(RECIPE, {"target": T5Config()}) == {"target": 512}
    assert choose_contexts(RECIPE.with_changes(context_length=700), {"target": T5Config()}) == {"target": 700}


def test_sources_that_cannot_be() -> None:
    recipe = RECIPE.with_changes(source_length=65)
    with pytest.raises(RecipeError, match="source_length: got 65, but the target's encoder knows 64 positions"):
        choose_contexts(recipe, {"target": BartConfig(max_position_embeddings=64)})
    with pytest.raises(RecipeError, match="source_length: got 65, but the target has no encoder"):
        choose_contexts(recipe, {"target": knows(64)})
