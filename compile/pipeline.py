"""From a recipe to a bundle: the steps in order."""

from __future__ import annotations

import math
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from mxspec.compile.check.check_model import check_model, check_twin
from mxspec.compile.check.cost import measure_cost
from mxspec.compile.check.own_weights import check_own_weights
from mxspec.compile.check.pair import Vocabulary, check_kinds, usable_ids
from mxspec.compile.check.prompt_parts import check_prompt_parts
from mxspec.compile.check.referee import Verdict, judge
from mxspec.compile.check.windows import check_windows
from mxspec.compile.checkpoint.checkpoint import Checkpoint, require_complete
from mxspec.compile.checkpoint.fit_head import fit_head, fit_mtp
from mxspec.compile.checkpoint.open_checkpoint import hub_ids, open_checkpoint, require_folders
from mxspec.compile.checkpoint.settings.generation_config import not_applied_note, read_rules, read_sampling
from mxspec.compile.checkpoint.settings.special_tokens import read_special_tokens
from mxspec.compile.checkpoint.tensors.derived import Ids
from mxspec.compile.guesses.write_guesses import check_texts, write_guesses
from mxspec.compile.heads.eagle3 import Eagle3Config
from mxspec.compile.heads.head import HeadConfig
from mxspec.compile.heads.mtp import MtpConfig
from mxspec.compile.planning.context import choose_contexts, rope_warning, source_length
from mxspec.compile.planning.plan import ModelPlan, plan_model
from mxspec.compile.planning.share_tables import share_tables
from mxspec.compile.progress import Stages
from mxspec.compile.publish import Publication
from mxspec.compile.trace.trace import Traces
from mxspec.compile.vocabulary.draft_vocabulary import choose_vocabulary
from mxspec.compile.weights.budget.meet_budget import Model, meet_budget
from mxspec.compile.weights.rounding.choose_rounding import choose_rounding
from mxspec.compile.weights.rounding.round_model import round_model, scratch_bytes
from mxspec.compile.weights.rounding.rounded import RoundedModel
from mxspec.compile.weights.write_model import WrittenModel, weights_name, write_model
from mxspec.formats.bundle_writer import BundleWriter
from mxspec.formats.errors import PairError, RecipeError
from mxspec.formats.manifest import TOKENIZER, BudgetEntry, Manifest, ModelName, SamplingDefaults
from mxspec.formats.weight_format import FP16_TILES
from mxspec.recipes.recipe import Recipe, TargetRecipe
from mxspec.runtime.text.tokenizer import load_tokenizer

TEMPLATE_FILES = ("tokenizer_config.json", "chat_template.jinja")
PLAIN = {  # the recipe of a baseline
    "format": FP16_TILES,
    "formats": (),
    "keep_fp16": (),
    "budget": None,
    "max_ratio": None,
    "allowed_formats": (),
    "activations": "int16",
    "tied": None,
}
GRAPH_BYTES = 64 << 20  # more than any graph takes without weights


def compile_bundle(recipe: Recipe, output: Path, *, with_baseline: bool, force: bool, stages: Stages) -> Manifest:
    """Compile a pair into the directory `output`; raises MxspecError, and leaves nothing behind when it fails."""
    with BundleWriter(output, force=force) as writer, ExitStack() as files:
        if writer.work.found_work:
            stages.note(f"{writer.work.path} was left by an interrupted run: the parts that still fit are reused")
        check_texts(recipe)
        recipe, checkpoints = open_pair(recipe, files, stages)
        with unchanged(checkpoints.values()):
            manifest = write_bundle(recipe, checkpoints, writer, stages, with_baseline=with_baseline)
        writer.publish(manifest)
    return manifest


def write_bundle(
    recipe: Recipe,
    checkpoints: dict[ModelName, Checkpoint],
    writer: BundleWriter,
    stages: Stages,
    *,
    with_baseline: bool,
) -> Manifest:
    """Write every file of a bundle but its manifest, which is what comes back; raises MxspecError."""
    models = list_models(recipe, with_baseline)
    for checkpoint in dict.fromkeys(checkpoints[name] for name in models):
        require_complete(checkpoint)
    vocabularies, sampling = read_vocabularies(checkpoints), read_sampling(checkpoints["target"].folder)
    contexts = choose_contexts(recipe, {name: checkpoints[name].config for name in models})
    target = checkpoints["target"].config
    recipe = recipe.with_changes(context_length=contexts["target"], source_length=source_length(recipe, target))
    for note in first_notes(checkpoints, contexts, vocabularies["target"].size):
        stages.note(note)

    taps = taps_of(checkpoints)
    verdicts = judge_models(models, checkpoints, contexts, stages, taps)
    chosen = choose_vocabulary(recipe, checkpoints, vocabularies, contexts, writer.work.rounding, stages)
    rows: dict[ModelName, Ids] = {} if chosen is None or chosen.rows is None else {"draft": chosen.rows}
    budgets = meet_budgets(models, checkpoints, contexts, recipe, writer, stages)
    plans = share_tables(plan_models(models, checkpoints, contexts, recipe, verdicts, stages, rows, taps))
    known = {
        plan.name: usable_ids(plan.name, vocabularies[plan.name], plan.exported.vocab_size)
        for plan in plans
        if plan.rows is None
    }
    if chosen is not None:
        known["draft"] = chosen.entry.reads
    recipe = choose_rounding(recipe, plans, checkpoints, stages)
    scratch = sum(scratch_bytes(plan, recipe) for plan in plans)
    writer.require_space(sum(plan.layout.file_bytes for plan in plans) + GRAPH_BYTES + scratch)

    made = write_models(plans, checkpoints, recipe, known, budgets, writer, stages)
    check_models(plans, checkpoints, models, recipe, known, verdicts, made, stages)
    if chosen is not None:
        chosen.write(made)
    return finish(recipe, checkpoints["target"], known["target"], sampling, made, stages)


def finish(
    recipe: Recipe,
    target: Checkpoint,
    known: int,
    sampling: SamplingDefaults,
    made: Publication,
    stages: Stages,
) -> Manifest:
    """Write what is left beside the models: the tokenizer, and what drafters know of texts; the manifest."""
    copy_tokenizer(target, made)
    guesses = write_guesses(recipe, target.tokenizer, known, made.writer, made.contents, stages)
    sha256, with_encoder = made.contents[TOKENIZER].sha256, bool(target.config.is_encoder_decoder)
    tokenizer = read_special_tokens(target.folder, sha256, known, is_encoder_decoder=with_encoder)
    assert recipe.context_length is not None
    rules = read_rules(
        target.folder,
        known,
        eos=tokenizer.eos_token_ids,
        decoder_start=tokenizer.decoder_start,
        longest=recipe.context_length,
    )
    if (warning := not_applied_note(rules, tokenizer.decoder_start)) is not None:
        stages.note(warning)
    if not tokenizer.eos_token_ids:
        stages.note("warning: neither generation_config.json nor config.json names an end-of-text token")
    return made.manifest(recipe, tokenizer, sampling, rules, guesses)


def write_models(
    plans: Sequence[ModelPlan],
    checkpoints: Mapping[ModelName, Checkpoint],
    recipe: Recipe,
    known: Mapping[ModelName, int],
    budgets: Mapping[ModelName, BudgetEntry],
    writer: BundleWriter,
    stages: Stages,
) -> Publication:
    """Round and pack the weights of all models."""
    place = writer.work.rounding
    rounded = {
        plan.name: round_model(plan, checkpoints[plan.name], known[plan.name], recipe, place, stages) for plan in plans
    }
    made = Publication(writer)
    for plan in plans:
        priced = replace(plan, budget=budgets.get(plan.name))
        made.add_model(plan.name, pack_model(priced, rounded[plan.name], writer, stages))
    return made


def check_models(
    plans: Sequence[ModelPlan],
    checkpoints: Mapping[ModelName, Checkpoint],
    models: Mapping[ModelName, TargetRecipe],
    recipe: Recipe,
    known: Mapping[ModelName, int],
    verdicts: Mapping[Checkpoint, Verdict],
    made: Publication,
    stages: Stages,
) -> None:
    """Run what was written, and put into its entries how right it is; raises CheckFailed."""
    folder = made.writer.folder
    for plan in plans:
        checkpoint, entry = checkpoints[plan.name], made.models[plan.name]
        with stages.step(f"check {plan.name}"):
            complete = check_model(plan, folder, entry, known[plan.name])
            if not complete:
                check_twin(plan, checkpoint.config, models[plan.name], recipe)
            own = check_own_weights(folder, entry, checkpoint, plan.rows)
        seen: dict[str, float] = {} if own is None else {"own": own.stored.error} | {**own.divergences}
        referee = verdicts[checkpoint].entry.model_copy(update=seen)
        cost = None
        if plan.name == "target":
            cost = measure_cost(plan, checkpoint, known["target"], folder, entry, recipe, stages)
        made.models[plan.name] = entry.model_copy(update={"referee": referee, "cost": cost})


@contextmanager
def unchanged(checkpoints: Collection[Checkpoint]) -> Iterator[None]:
    """Raise CheckpointError where a file of a checkpoint was changed or removed meanwhile, whatever else it led to."""
    try:
        yield
    except Exception:
        _require_unchanged(checkpoints)
        raise
    _require_unchanged(checkpoints)


def _require_unchanged(checkpoints: Collection[Checkpoint]) -> None:
    for checkpoint in checkpoints:
        checkpoint.require_unchanged()


def open_pair(recipe: Recipe, files: ExitStack, stages: Stages) -> tuple[Recipe, dict[ModelName, Checkpoint]]:
    """The checkpoints, fetched and opened, until `files` closes; the baseline is made from the target's.

    In the returned recipe each revision is the downloaded commit. Raises MxspecError if a checkpoint cannot be opened,
    for a pair of two kinds, and for options that models with encoders do not support.
    """
    for model in (recipe.target, recipe.draft):
        if model is not None:
            require_folders(recipe, model)
    for checkpoint in hub_ids(recipe):
        stages.note(f"contacting the hub for {checkpoint}")
    target, of_target = open_checkpoint(recipe, recipe.target, files)
    if isinstance(target.config, Eagle3Config):
        raise PairError(f"{target.folder} is an EAGLE-3 head, which drafts for a target: name it with --draft")
    if target.config.is_encoder_decoder and recipe.rounding == "gptq":
        raise RecipeError("rounding: 'gptq' does not support models with an encoder; use 'scale'")
    opened: dict[ModelName, Checkpoint] = {"target": target, "baseline": target}
    recipe, wanted = recipe.with_changes(target=of_target), recipe.draft
    if wanted is None:
        return recipe, opened
    draft, of_draft = open_checkpoint(recipe, wanted, files)
    opened["draft"] = draft
    check_kinds(target.config, draft.config)
    if isinstance(draft.config, HeadConfig) and wanted.has_budget:
        raise RecipeError("draft.budget: a draft that reads hidden states does not support it; give draft.format")
    if isinstance(draft.config, Eagle3Config):
        fit_head(draft, target)
    elif isinstance(draft.config, MtpConfig):
        fit_mtp(draft, target)
    return recipe.with_changes(draft=of_draft), opened


def judge_models(
    models: Iterable[ModelName],
    checkpoints: Mapping[ModelName, Checkpoint],
    contexts: Mapping[ModelName, int],
    stages: Stages,
    taps: Sequence[int] = (),
) -> dict[Checkpoint, Verdict]:
    """The referee's verdict on each checkpoint; a baseline has the target's, which gives the states of `taps`."""
    verdicts: dict[Checkpoint, Verdict] = {}
    for name in models:
        if checkpoints[name] not in verdicts:
            with stages.step(f"referee {name}"):
                given = () if name == "draft" else taps
                verdicts[checkpoints[name]] = judge(checkpoints[name].config, contexts[name], given)
    return verdicts


def taps_of(checkpoints: Mapping[ModelName, Checkpoint]) -> tuple[int, ...]:
    """The places in the target whose states the draft reads; none for most drafts."""
    config = checkpoints["draft"].config if "draft" in checkpoints else None
    return tuple(config.taps or ()) if isinstance(config, HeadConfig) else ()


def meet_budgets(
    models: dict[ModelName, TargetRecipe],
    checkpoints: Mapping[ModelName, Checkpoint],
    contexts: Mapping[ModelName, int],
    recipe: Recipe,
    writer: BundleWriter,
    stages: Stages,
) -> dict[ModelName, BudgetEntry]:
    """Choose formats for all matrices of models with a budget, in `models`; return the manifest's entries."""
    budgets: dict[ModelName, BudgetEntry] = {}
    for name, wanted in models.items():
        if wanted.has_budget:
            model = Model(name, checkpoints[name], wanted, recipe, writer.work.rounding)
            models[name], budgets[name] = meet_budget(model, contexts[name], writer.require_space, stages)
    return budgets


def plan_models(
    models: Mapping[ModelName, TargetRecipe],
    checkpoints: Mapping[ModelName, Checkpoint],
    contexts: Mapping[ModelName, int],
    recipe: Recipe,
    verdicts: Mapping[Checkpoint, Verdict],
    stages: Stages,
    rows: Mapping[ModelName, Ids],
    taps: Sequence[int] = (),
) -> list[ModelPlan]:
    """Export each model, its head with these `rows` if given; a target also gives the states that enter `taps`.

    Raises CheckFailed if a graph's windows differ from its config's and its twin's.
    """
    plans = []
    traces = {checkpoint: Traces() for checkpoint in checkpoints.values()}
    for name, wanted in models.items():
        checkpoint = checkpoints[name]
        with stages.step(f"export {name}"):
            tapped = () if name == "draft" else taps
            trace, kept = traces[checkpoint], rows.get(name)
            plan = plan_model(name, checkpoint, wanted, _recipe_of(name, recipe), contexts[name], trace, kept, tapped)
            check_windows(checkpoint.config, plan.exported.windows, verdicts[checkpoint].windows)
            plans.append(plan)
        if wanted.tied == "once" and not plan.shares_table and plan.rows is None:
            stages.note(f"the {name} has an embedding and a head of their own: `tied` changes nothing")
    return plans


def _recipe_of(name: ModelName, recipe: Recipe) -> Recipe:
    """The recipe of one model: a baseline, which the others are compared with, has no MXINT8 caches."""
    exact = name == "baseline" and recipe.caches == "mxint8"
    return recipe.with_changes(caches="float16") if exact else recipe


def pack_model(plan: ModelPlan, rounded: RoundedModel, writer: BundleWriter, stages: Stages) -> WrittenModel:
    """Write a model's files."""
    with stages.bytes(f"pack {plan.name}", plan.read_bytes) as advance:
        journal = writer.work.journal(weights_name(plan))
        written = write_model(plan, writer.folder, advance, rounded, journal)
    if written.taken_over:
        stages.note(f"{written.taken_over} tensors of the {plan.name} were packed by the run before")
    return written


def read_vocabularies(checkpoints: dict[ModelName, Checkpoint]) -> dict[ModelName, Vocabulary]:
    """Each model's tokens; raises MxspecError for a tokenizer that the runtime would refuse."""
    for checkpoint in dict.fromkeys(checkpoints.values()):
        load_tokenizer(checkpoint.tokenizer)  # what the runtime would refuse is refused before anything is compiled
    target = Vocabulary.read(checkpoints["target"].tokenizer)
    read: dict[ModelName, Vocabulary] = {"target": target, "baseline": target}
    if "draft" in checkpoints:
        read["draft"] = Vocabulary.read(checkpoints["draft"].tokenizer)
    return read


def list_models(recipe: Recipe, with_baseline: bool) -> dict[ModelName, TargetRecipe]:
    """The models to compile, with their recipes; the baseline is the target with every matrix in fp16."""
    models: dict[ModelName, TargetRecipe] = {"target": recipe.target}
    if recipe.draft is not None:
        models["draft"] = recipe.draft
    if with_baseline:
        models["baseline"] = recipe.target.model_copy(update=PLAIN)
    return models


def first_notes(
    checkpoints: Mapping[ModelName, Checkpoint], contexts: Mapping[ModelName, int], tokens: int
) -> Iterator[str]:
    """What a user should know of the models before minutes are spent on them; the target has so many `tokens`."""
    target = checkpoints["target"]
    with_encoder = bool(target.config.is_encoder_decoder)
    if warning := check_prompt_parts(target.folder, tokens, is_encoder_decoder=with_encoder):
        yield f"warning: {warning}"
    yield from dict.fromkeys(note for checkpoint in checkpoints.values() for note in checkpoint.notes)
    for warning in pair_warnings(checkpoints, contexts):
        yield f"warning: {warning}"


def pair_warnings(checkpoints: Mapping[ModelName, Checkpoint], contexts: Mapping[ModelName, int]) -> Iterator[str]:
    """Where a model or the pair does less than one would think."""
    for name in contexts:
        if name != "baseline" and (warning := rope_warning(name, checkpoints[name].config, contexts[name])):
            yield warning
    if "draft" not in contexts:
        return
    whole, draft = contexts["target"], contexts["draft"]
    if draft < whole:
        yield f"the draft knows {draft} of {whole} positions: beyond them nothing is drafted"
    of_target, of_draft = (
        sum(math.prod(tensor.shape) for tensor in checkpoints[name].tensors.values()) for name in ("target", "draft")
    )
    if of_draft > of_target:
        yield (
            f"the draft, with {of_draft / 1e6:,.1f} million weights, is larger than the target, with "
            f"{of_target / 1e6:,.1f} million: a draft helps if it is much smaller; is the target the other one?"
        )


def copy_tokenizer(checkpoint: Checkpoint, made: Publication) -> None:
    """Copy the tokenizer's files: tokenizer.json, and others that exist."""
    for path in (checkpoint.tokenizer, *(checkpoint.folder / name for name in TEMPLATE_FILES)):
        if path.is_file():
            shutil.copyfile(path, made.writer.folder / path.name)
            made.add_file(path.name)
