"""From a recipe to a bundle: the stages in order."""

from __future__ import annotations

import platform
import shutil
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mxspec.compile.check.check_model import check_model
from mxspec.compile.check.cost import measure_cost
from mxspec.compile.check.own_weights import check_own_weights
from mxspec.compile.check.referee import check_windows, judge
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.settings.generation_config import (
    not_applied_note,
    read_rules,
    read_sampling,
    read_special_tokens,
)
from mxspec.compile.guesses import check_texts, write_guesses
from mxspec.compile.heads.eagle3 import Eagle3Config
from mxspec.compile.open_models import Models, check_models_early, open_models, unchanged
from mxspec.compile.planning.layout import share_tables
from mxspec.compile.planning.model import Model
from mxspec.compile.planning.pair import usable_ids
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.progress import Stages
from mxspec.compile.vocabulary.draft_vocabulary import DraftVocabulary, choose_vocabulary
from mxspec.compile.weights.budget.meet_budget import meet_budget
from mxspec.compile.weights.rounding.choose_rounding import choose_rounding
from mxspec.compile.weights.rounding.round_model import round_model, scratch_bytes
from mxspec.compile.weights.rounding.store import RoundedModel
from mxspec.compile.weights.write_model import WrittenModel, weights_name, write_model
from mxspec.formats.bundle import BundleWriter
from mxspec.formats.manifest import TOKENIZER, Manifest, ModelEntry
from mxspec.recipes.recipe import Recipe

TEMPLATE_FILES = ("tokenizer_config.json", "chat_template.jinja")
VERSIONS_OF = ("mxspec", "torch", "transformers", "onnx", "onnxscript", "onnx-ir", "onnxruntime")
GRAPH_BYTES = 64 << 20  # more than any graph takes without weights


def compile_bundle(recipe: Recipe, output: Path, *, with_baseline: bool, force: bool, stages: Stages) -> Manifest:
    """Compile a pair into the directory `output`; raises MxspecError, and leaves nothing behind when it fails."""
    with BundleWriter(output, force=force) as writer, ExitStack() as files:
        if writer.found_work:
            stages.note(f"{writer.work} was left by an interrupted run: the parts that still fit are reused")
        check_texts(recipe)
        models = open_models(recipe, files, stages, with_baseline=with_baseline)
        with unchanged(models.values()):
            manifest = write_bundle(models, writer, stages)
        writer.publish(manifest)
    return manifest


def write_bundle(models: Models, writer: BundleWriter, stages: Stages) -> Manifest:
    """Write every file of a bundle except its manifest, which is returned; raises MxspecError."""
    check_models_early(models, stages)
    judge_models(models, stages)
    chosen = choose_tokens(models, writer, stages)
    meet_budgets(models, writer, stages)
    plan_models(models, stages)
    choose_rounding(models.values(), stages)
    write_models(models, writer, stages)
    check_models(models, writer.folder, stages)
    return finish(models, chosen, writer, stages)


def judge_models(models: Models, stages: Stages) -> None:
    """Have the referee compare a twin of each model with transformers; a baseline has the target's verdict."""
    for model in models.values():
        if model.name == "baseline":
            model.verdict = models["target"].verdict
        else:
            with stages.step(f"referee {model.name}"):
                model.verdict = judge(model.config, model.context_length, model.hidden_state_outputs)


def choose_tokens(models: Models, writer: BundleWriter, stages: Stages) -> DraftVocabulary | None:
    """Count the token ids that each model knows, and choose those that a draft proposes."""
    target = models["target"]
    for model in models.values():
        if isinstance(model.config, Eagle3Config):
            model.known = target.known
        else:
            logits = len(model.checkpoint.named.get_output_embeddings().weight)
            model.known = usable_ids(model.name, model.tokens, logits)
    if "draft" not in models:
        return None
    chosen = choose_vocabulary(target, models["draft"], writer.rounding, stages)
    models["draft"].rows = None if chosen is None else chosen.rows
    return chosen


def meet_budgets(models: Models, writer: BundleWriter, stages: Stages) -> None:
    """Choose formats for all matrices of models with a budget."""
    for model in models.values():
        if model.wanted.has_budget:
            place = writer.rounding
            model.wanted, model.budget = meet_budget(model, place, writer.require_space, stages)


def plan_models(models: Models, stages: Stages) -> None:
    """Export each model, and lay out its weights; tables that models share are stored once.

    Raises CheckFailed if a graph's windows differ from its config's and its twin's.
    """
    for model in models.values():
        with stages.step(f"export {model.name}"):
            model.plan = plan_model(model)
            check_windows(model.config, model.plan.exported.windows, model.verdict.windows)
        if model.wanted.tied == "once" and not model.plan.shares_table and model.rows is None:
            stages.note(f"the {model.name} has an embedding and a head of their own: `tied` changes nothing")
    shared = share_tables([model.plan for model in models.values()])
    for model, plan in zip(models.values(), shared, strict=True):
        model.plan = plan


def write_models(models: Models, writer: BundleWriter, stages: Stages) -> None:
    """Round and pack the weights of all models."""
    scratch = sum(scratch_bytes(model) for model in models.values())
    writer.require_space(sum(model.plan.layout.file_bytes for model in models.values()) + GRAPH_BYTES + scratch)
    rounded = [round_model(model, writer.rounding, stages) for model in models.values()]
    for model, weights in zip(models.values(), rounded, strict=True):
        model.entry = add_model(_pack(model, weights, writer, stages), writer)


def _pack(model: Model, rounded: RoundedModel, writer: BundleWriter, stages: Stages) -> WrittenModel:
    with stages.bytes(f"pack {model.name}", model.plan.read_bytes) as advance:
        journal = writer.journal(weights_name(model.name))
        written = write_model(model.plan, writer.folder, advance, rounded, journal)
    if written.taken_over:
        stages.note(f"{written.taken_over} tensors of the {model.name} were packed by the run before")
    return written


def add_model(written: WrittenModel, writer: BundleWriter) -> ModelEntry:
    """List a model's files in the bundle; its entry is returned."""
    for graph in written.entry.graphs:
        writer.add_file(graph)
    writer.add_file(written.entry.weights, written.weights_sha256)
    return written.entry


def check_models(models: Models, folder: Path, stages: Stages) -> None:
    """Run what was written, and put into its entries how right it is; raises CheckFailed."""
    for model in models.values():
        with stages.step(f"check {model.name}"):
            check_model(model, folder)
            own = check_own_weights(folder, model.entry, model.checkpoint, model.rows)
        seen: dict[str, float] = {} if own is None else {"own": own.stored.error} | {**own.divergences}
        found = {
            "referee": model.verdict.entry.model_copy(update=seen),
            "cost": measure_cost(model, folder, stages) if model.name == "target" else None,
            "budget": model.budget,
        }
        model.entry = model.entry.model_copy(update=found)


def finish(models: Models, chosen: DraftVocabulary | None, writer: BundleWriter, stages: Stages) -> Manifest:
    """Write what is left beside the models: tokens, the tokenizer, and what drafters know of texts; the manifest."""
    if chosen is not None:
        models["draft"].entry = chosen.write(models["draft"].entry, writer)
    target = models["target"]
    folder, known = target.checkpoint.folder, target.known
    copy_tokenizer(target.checkpoint, writer)
    guesses = write_guesses(target, writer, stages)
    sha256, with_encoder = writer.files[TOKENIZER].sha256, bool(target.config.is_encoder_decoder)
    tokenizer = read_special_tokens(folder, sha256, known, is_encoder_decoder=with_encoder)
    rules = read_rules(
        folder,
        known,
        eos=tokenizer.eos_token_ids,
        decoder_start=tokenizer.decoder_start,
        longest=target.context_length,
    )
    if (warning := not_applied_note(rules, tokenizer.decoder_start)) is not None:
        stages.note(warning)
    if not tokenizer.eos_token_ids:
        stages.note("warning: neither generation_config.json nor config.json names an end-of-text token")
    return Manifest(
        name=target.recipe.name,
        k_max=target.recipe.k_max,
        recipe=_decided(models),
        models={name: model.entry for name, model in models.items()},
        guesses=guesses,
        tokenizer=tokenizer,
        sampling=read_sampling(folder),
        generation=rules,
        files=writer.files,
        versions=versions(),
    )


def copy_tokenizer(checkpoint: Checkpoint, writer: BundleWriter) -> None:
    """Copy the tokenizer's files into the bundle: tokenizer.json, and others that exist."""
    for path in (checkpoint.tokenizer, *(checkpoint.folder / name for name in TEMPLATE_FILES)):
        if path.is_file():
            shutil.copyfile(path, writer.folder / path.name)
            writer.add_file(path.name)


def versions() -> dict[str, str]:
    """The versions of what makes a bundle."""
    return {"python": platform.python_version()} | {name: version(name) for name in VERSIONS_OF}


def _decided(models: Models) -> dict[str, Any]:
    """The recipe in plain values, with what was decided in the place of what was asked."""
    target = models["target"]
    values = target.recipe.as_dict() | {"context_length": target.context_length, "rounding": target.rounding}
    values["source_length"] = target.source_length
    for model in models.values():
        if model.name != "baseline":
            values[model.name] |= {key: commit for key, commit in model.commits.items() if commit is not None}
    return values
