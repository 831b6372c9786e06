"""From a recipe to a bundle: the steps in their order."""

from __future__ import annotations

import platform
import shutil
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from mxspec.compile.check.check_model import check_model, check_twin
from mxspec.compile.check.pair import Vocabulary, check_logits, check_pair
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.fetch import fetch_checkpoint
from mxspec.compile.checkpoint.special_tokens import read_sampling, read_special_tokens
from mxspec.compile.plan import plan_model
from mxspec.compile.progress import Stages
from mxspec.compile.weights.rounding.round_model import round_model, scratch_bytes
from mxspec.compile.weights.write_model import weights_name, write_model
from mxspec.formats.bundle_writer import BundleWriter
from mxspec.formats.errors import RecipeError, UnsupportedModelError
from mxspec.formats.manifest import TOKENIZER, FileEntry, Manifest, ModelEntry, ModelName
from mxspec.formats.weight_format import FP16_TILES
from mxspec.recipes.recipe import Recipe, TargetRecipe

TOKENIZER_FILES = (TOKENIZER, "tokenizer_config.json", "chat_template.jinja")
PLAIN = {"format": FP16_TILES, "formats": (), "keep_fp16": (), "activations": "int16"}  # of a baseline
GRAPH_BYTES = 64 << 20  # more than any graph without weights takes
VERSIONS_OF = ("mxspec", "torch", "transformers", "onnx", "onnxscript", "onnx-ir", "onnxruntime")


def compile_bundle(recipe: Recipe, output: Path, *, with_baseline: bool, force: bool, stages: Stages) -> Manifest:
    """Compile a pair into the directory `output`; raises MxspecError, and leaves nothing behind when it fails."""
    with BundleWriter(output, force=force) as writer, ExitStack() as files:
        if writer.work.found_work:
            stages.note(f"{writer.work.path} was left by a run that did not end: what fits is taken over")
        checkpoints = open_pair(recipe, files)
        vocabulary = check_tokenizers(checkpoints)
        models = list_models(recipe, with_baseline)
        context_length = common_context(recipe, checkpoints)
        recipe = recipe.with_changes(context_length=context_length)

        plans = []
        for name, wanted in models.items():
            with stages.step(f"export {name}"):
                plan = plan_model(name, checkpoints[name], wanted, recipe, context_length)
                check_logits(name, vocabulary, plan.exported.vocab_size)
                plans.append(plan)
        scratch = sum(scratch_bytes(plan, recipe) for plan in plans)
        writer.require_space(sum(plan.layout.file_bytes for plan in plans) + GRAPH_BYTES + scratch)

        place = writer.work.rounding
        rounded = {plan.name: round_model(plan, checkpoints[plan.name], recipe, place, stages) for plan in plans}
        entries: dict[ModelName, ModelEntry] = {}
        contents: dict[str, FileEntry] = {}
        for plan in plans:
            with stages.bytes(f"pack {plan.name}", plan.read_bytes) as advance:
                journal = writer.work.journal(weights_name(plan))
                written = write_model(plan, writer.folder, advance, rounded[plan.name], journal)
            if written.taken_over:
                stages.note(f"{written.taken_over} tensors of the {plan.name} were packed by the run before")
            entry = entries[plan.name] = written.entry
            contents[entry.graph] = writer.entry(entry.graph)
            contents[entry.weights] = writer.entry(entry.weights, written.weights_sha256)
        for plan in plans:
            with stages.step(f"check {plan.name}"):
                complete = check_model(plan, writer.folder, entries[plan.name], vocabulary.size)
                if not complete:
                    check_twin(plan, checkpoints[plan.name].config, models[plan.name], recipe)

        folder = checkpoints["target"].folder
        copy_tokenizer(folder, writer, contents)
        manifest = Manifest(
            name=recipe.name,
            k_max=recipe.k_max,
            recipe=recipe.as_dict(),
            models=entries,
            tokenizer=read_special_tokens(folder, contents[TOKENIZER].sha256, vocabulary.size),
            sampling=read_sampling(folder),
            files=contents,
            versions={"python": platform.python_version()} | {name: version(name) for name in VERSIONS_OF},
        )
        writer.publish(manifest)
    return manifest


def open_pair(recipe: Recipe, files: ExitStack) -> dict[ModelName, Checkpoint]:
    """The checkpoints, fetched and opened, until `files` closes; the baseline is made from the target's."""
    folders = [fetch_checkpoint(recipe, model.checkpoint, model.revision) for model in (recipe.target, recipe.draft)]
    target, draft = (files.enter_context(Checkpoint(folder)) for folder in folders)
    return {"target": target, "draft": draft, "baseline": target}


def check_tokenizers(checkpoints: dict[ModelName, Checkpoint]) -> Vocabulary:
    """The vocabulary that both models share; raises PairError if they do not."""
    target = Vocabulary.read(checkpoints["target"].folder)
    check_pair(target, Vocabulary.read(checkpoints["draft"].folder))
    return target


def list_models(recipe: Recipe, with_baseline: bool) -> dict[ModelName, TargetRecipe]:
    """What to compile, and how; the baseline is the target with every matrix in fp16."""
    models: dict[ModelName, TargetRecipe] = {"target": recipe.target, "draft": recipe.draft}
    if with_baseline:
        models["baseline"] = recipe.target.model_copy(update=PLAIN)
    return models


def common_context(recipe: Recipe, checkpoints: dict[ModelName, Checkpoint]) -> int:
    """The recipe's context length, or the most that both models know; raises RecipeError where one knows less."""
    pair: tuple[ModelName, ...] = ("target", "draft")
    limits = {name: getattr(checkpoints[name].config, "max_position_embeddings", None) for name in pair}
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
