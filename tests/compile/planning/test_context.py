"""How many positions each model is compiled for."""

from __future__ import annotations

import pytest
from transformers import BartConfig, BloomConfig, LlamaConfig, PreTrainedConfig, T5Config

from mxspec.compile.planning.context import choose_contexts, source_length
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
    with pytest.raises(RecipeError, match="got 65, but the target knows 64 positions"):
        choose_contexts(RECIPE.with_changes(context_length=65), {"target": knows(64)})
    with pytest.raises(RecipeError, match="k_max: got 4, expected less than the context length, 4"):
        choose_contexts(RECIPE.with_changes(context_length=4), {"target": knows(64)})
    with pytest.raises(UnsupportedModelError, match="does not say how many positions"):
        choose_contexts(RECIPE, {"target": knows(None)})


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
