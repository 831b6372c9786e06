"""From a recipe to a bundle: the steps in their order."""

from __future__ import annotations

import platform
import shutil
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from mxspec.compile.check.check_model import check_model, check_twin
from mxspec.compile.check.context import choose_contexts
from mxspec.compile.check.pair import Vocabulary, check_pair, usable_ids
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.fetch import fetch_checkpoint
from mxspec.compile.checkpoint.special_tokens import read_sampling, read_special_tokens
from mxspec.compile.plan import plan_model
from mxspec.compile.progress import Stages
from mxspec.compile.weights.rounding.round_model import round_model, scratch_bytes
from mxspec.compile.weights.write_model import weights_name, write_model
from mxspec.formats.bundle_writer import BundleWriter
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
        vocabularies = read_vocabularies(checkpoints, stages)
        models = list_models(recipe, with_baseline)
        contexts = choose_contexts(recipe, {name: checkpoints[name].config for name in models})
        recipe = recipe.with_changes(context_length=contexts["target"])
        note_shorter_draft(contexts, stages)

        plans = []
        for name, wanted in models.items():
            with stages.step(f"export {name}"):
                plans.append(plan_model(name, checkpoints[name], wanted, recipe, contexts[name]))
        known = {plan.name: usable_ids(plan.name, vocabularies[plan.name], plan.exported.vocab_size) for plan in plans}
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
                complete = check_model(plan, writer.folder, entries[plan.name], known[plan.name])
                if not complete:
                    check_twin(plan, checkpoints[plan.name].config, models[plan.name], recipe)

        folder = checkpoints["target"].folder
        copy_tokenizer(folder, writer, contents)
        manifest = Manifest(
            name=recipe.name,
            k_max=recipe.k_max,
            recipe=recipe.as_dict(),
            models=entries,
            tokenizer=read_special_tokens(folder, contents[TOKENIZER].sha256, known["target"]),
            sampling=read_sampling(folder),
            files=contents,
            versions={"python": platform.python_version()} | {name: version(name) for name in VERSIONS_OF},
        )
        if not manifest.tokenizer.eos_token_ids:
            stages.note("warning: neither generation_config.json nor config.json names a token that ends a text")
        writer.publish(manifest)
    return manifest


def open_pair(recipe: Recipe, files: ExitStack) -> dict[ModelName, Checkpoint]:
    """The checkpoints, fetched and opened, until `files` closes; the baseline is made from the target's."""

    def open_model(model: TargetRecipe) -> Checkpoint:
        return files.enter_context(Checkpoint(fetch_checkpoint(recipe, model.checkpoint, model.revision)))

    target = open_model(recipe.target)
    opened: dict[ModelName, Checkpoint] = {"target": target, "baseline": target}
    if recipe.draft is not None:
        opened["draft"] = open_model(recipe.draft)
    return opened


def read_vocabularies(checkpoints: dict[ModelName, Checkpoint], stages: Stages) -> dict[ModelName, Vocabulary]:
    """Each model's tokens; raises PairError where target and draft do not share them."""
    target = Vocabulary.read(checkpoints["target"].folder)
    read: dict[ModelName, Vocabulary] = {"target": target, "baseline": target}
    if "draft" in checkpoints:
        read["draft"] = Vocabulary.read(checkpoints["draft"].folder)
        if difference := check_pair(target, read["draft"]):
            stages.note(f"warning: {difference}")
    return read


def list_models(recipe: Recipe, with_baseline: bool) -> dict[ModelName, TargetRecipe]:
    """What to compile, and how; the baseline is the target with every matrix in fp16."""
    models: dict[ModelName, TargetRecipe] = {"target": recipe.target}
    if recipe.draft is not None:
        models["draft"] = recipe.draft
    if with_baseline:
        models["baseline"] = recipe.target.model_copy(update=PLAIN)
    return models


def note_shorter_draft(contexts: dict[ModelName, int], stages: Stages) -> None:
    """Say so where texts grow beyond the draft."""
    whole, draft = contexts["target"], contexts.get("draft", contexts["target"])
    if draft < whole:
        stages.note(f"warning: the draft knows {draft} of {whole} positions: beyond them nothing is drafted")


def copy_tokenizer(folder: Path, writer: BundleWriter, contents: dict[str, FileEntry]) -> None:
    """The tokenizer's files that there are; tokenizer.json there is."""
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, writer.folder / name)
            contents[name] = writer.entry(name)
