"""From a recipe to a bundle: the steps in their order."""

from __future__ import annotations

import platform
import shutil
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from mxspec.compile.check.check_model import check_model, check_twin
from mxspec.compile.check.pair import Vocabulary, check_logits, check_pair
from mxspec.compile.checkpoint.config import load_config
from mxspec.compile.checkpoint.fetch import fetch_checkpoint
from mxspec.compile.checkpoint.special_tokens import read_sampling, read_special_tokens
from mxspec.compile.plan import plan_model
from mxspec.compile.progress import Stages
from mxspec.compile.weights.budget.meet_budget import Model, meet_budget
from mxspec.compile.weights.rounding.round_model import round_model, scratch_bytes
from mxspec.compile.weights.write_model import write_model
from mxspec.formats.bundle_writer import BundleWriter
from mxspec.formats.errors import RecipeError, UnsupportedModelError
from mxspec.formats.manifest import TOKENIZER, BudgetEntry, FileEntry, Manifest, ModelEntry, ModelName
from mxspec.formats.weight_format import FP16_TILES
from mxspec.recipes.recipe import Recipe, TargetRecipe

TOKENIZER_FILES = (TOKENIZER, "tokenizer_config.json", "chat_template.jinja")
PLAIN = {  # what the recipe of a baseline says
    "format": FP16_TILES,
    "formats": (),
    "keep_fp16": (),
    "budget": None,
    "max_ratio": None,
    "allowed_formats": (),
    "activations": "int16",
}
GRAPH_BYTES = 64 << 20  # more than any graph without weights takes
VERSIONS_OF = ("mxspec", "torch", "transformers", "onnx", "onnxscript", "onnx-ir", "onnxruntime")


def compile_bundle(recipe: Recipe, output: Path, *, with_baseline: bool, force: bool, stages: Stages) -> Manifest:
    """Compile a pair into the directory `output`; raises MxspecError, and leaves nothing behind when it fails."""
    with BundleWriter(output, force=force) as writer, ExitStack() as files:
        folders = fetch_pair(recipe)
        vocabulary = check_tokenizers(folders)
        models = list_models(recipe, with_baseline)
        context_length = common_context(recipe, folders)
        recipe = recipe.with_changes(context_length=context_length)

        place = output.absolute().with_name(f".{output.name}.rounding")
        budgets: dict[ModelName, BudgetEntry] = {}
        for name, wanted in models.items():
            if wanted.has_budget:
                model = Model(name, folders[name], wanted, recipe, place)
                models[name], budgets[name] = meet_budget(model, context_length, writer.require_space, stages)

        plans = []
        for name, wanted in models.items():
            with stages.step(f"export {name}"):
                plan = plan_model(name, folders[name], wanted, recipe, context_length, files)
                plan = replace(plan, budget=budgets.get(name))
                check_logits(name, vocabulary, plan.exported.vocab_size)
                plans.append(plan)
        scratch = sum(scratch_bytes(plan, recipe) for plan in plans)
        writer.require_space(sum(plan.layout.file_bytes for plan in plans) + GRAPH_BYTES + scratch)

        rounded = {plan.name: round_model(plan, folders[plan.name], recipe, place, stages) for plan in plans}
        entries: dict[ModelName, ModelEntry] = {}
        contents: dict[str, FileEntry] = {}
        for plan in plans:
            with stages.bytes(f"pack {plan.name}", plan.read_bytes) as advance:
                written = write_model(plan, writer.folder, advance, rounded[plan.name])
            entry = entries[plan.name] = written.entry
            contents[entry.graph] = writer.entry(entry.graph)
            contents[entry.weights] = writer.entry(entry.weights, written.weights_sha256)
        for plan in plans:
            with stages.step(f"check {plan.name}"):
                complete = check_model(plan, writer.folder, entries[plan.name], vocabulary.size)
                if not complete:
                    check_twin(plan, folders[plan.name], models[plan.name], recipe)

        copy_tokenizer(folders["target"], writer, contents)
        manifest = Manifest(
            name=recipe.name,
            k_max=recipe.k_max,
            recipe=recipe.as_dict(),
            models=entries,
            tokenizer=read_special_tokens(folders["target"], contents[TOKENIZER].sha256, vocabulary.size),
            sampling=read_sampling(folders["target"]),
            files=contents,
            versions={"python": platform.python_version()} | {name: version(name) for name in VERSIONS_OF},
        )
        writer.publish(manifest)
        shutil.rmtree(place, ignore_errors=True)
    return manifest


def fetch_pair(recipe: Recipe) -> dict[ModelName, Path]:
    """Directories of the checkpoints; the baseline is made from the target's."""
    target = fetch_checkpoint(recipe, recipe.target.checkpoint, recipe.target.revision)
    draft = fetch_checkpoint(recipe, recipe.draft.checkpoint, recipe.draft.revision)
    return {"target": target, "draft": draft, "baseline": target}


def check_tokenizers(folders: dict[ModelName, Path]) -> Vocabulary:
    """The vocabulary that both models share; raises PairError if they do not."""
    target = Vocabulary.read(folders["target"])
    check_pair(target, Vocabulary.read(folders["draft"]))
    return target


def list_models(recipe: Recipe, with_baseline: bool) -> dict[ModelName, TargetRecipe]:
    """What to compile, and how; the baseline is the target with every matrix in fp16."""
    models: dict[ModelName, TargetRecipe] = {"target": recipe.target, "draft": recipe.draft}
    if with_baseline:
        models["baseline"] = recipe.target.model_copy(update=PLAIN)
    return models


def common_context(recipe: Recipe, folders: dict[ModelName, Path]) -> int:
    """The recipe's context length, or the most that both models know; raises RecipeError where one knows less."""
    pair: tuple[ModelName, ...] = ("target", "draft")
    limits = {name: getattr(load_config(folders[name]), "max_position_embeddings", None) for name in pair}
    known = {name: limit for name, limit in limits.items() if limit}
    if recipe.context_length is None:
        if not known:
            raise UnsupportedModelError(
                "neither model says how many positions it knows; set context_length in the recipe"
            )
        return int(min(known.values()))
    for name, limit in known.items():
        if recipe.context_length > limit:
            raise RecipeError(
                f"context_length: got {recipe.context_length}, but the {name} knows {limit} positions; "
                f"expected at most {min(known.values())}"
            )
    return recipe.context_length


def copy_tokenizer(folder: Path, writer: BundleWriter, contents: dict[str, FileEntry]) -> None:
    """The tokenizer's files that there are; tokenizer.json there is."""
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, writer.folder / name)
            contents[name] = writer.entry(name)
