"""Open the models that a recipe names, and say early what cannot be compiled, or does less than one would think."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mxspec.compile.checkpoint.checkpoint import require_complete
from mxspec.compile.checkpoint.fit_head import fit_head, fit_mtp
from mxspec.compile.checkpoint.open_checkpoint import hub_ids, open_checkpoint, require_folders
from mxspec.compile.checkpoint.settings.generation_config import read_rules, read_sampling, read_special_tokens
from mxspec.compile.heads.eagle3 import Eagle3Config
from mxspec.compile.heads.head import HeadConfig
from mxspec.compile.heads.mtp import MtpConfig
from mxspec.compile.planning.context import choose_contexts, rope_warning
from mxspec.compile.planning.model import Model
from mxspec.compile.planning.pair import TokenIds, check_kinds
from mxspec.compile.progress import Stages
from mxspec.formats.errors import GenerationError, PairError, RecipeError
from mxspec.formats.manifest import ModelName
from mxspec.formats.weight_format import FP16_TILES
from mxspec.recipes.recipe import Recipe
from mxspec.runtime.text.chat import TEMPLATE, TOKENIZER_CONFIG, ChatTemplate
from mxspec.runtime.text.tokenizer import load_tokenizer

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

Models = dict[ModelName, Model]  # the target first


def open_models(recipe: Recipe, files: ExitStack, stages: Stages, *, with_baseline: bool) -> Models:
    """The models with their checkpoints, fetched and opened until `files` closes.

    A baseline is the target with every matrix in fp16. Raises MxspecError if a checkpoint cannot be opened, for a pair
    of two kinds, and for options that models with encoders do not support.
    """
    for part in (recipe.target, recipe.draft):
        if part is not None:
            require_folders(recipe, part)
    for checkpoint in hub_ids(recipe):
        stages.note(f"contacting the hub for {checkpoint}")
    opened, commits = open_checkpoint(recipe, recipe.target, files)
    target = Model("target", opened, recipe.target, recipe, commits=commits)
    if isinstance(opened.config, Eagle3Config):
        raise PairError(f"{opened.folder} is an EAGLE-3 head, which drafts for a target: name it with --draft")
    if opened.config.is_encoder_decoder and recipe.rounding == "gptq":
        raise RecipeError("rounding: 'gptq' does not support models with an encoder; use 'scale'")
    models: Models = {"target": target}
    if recipe.draft is not None:
        draft, commits = open_checkpoint(recipe, recipe.draft, files)
        models["draft"] = Model("draft", draft, recipe.draft, recipe, commits=commits)
        _fit_draft(models["draft"], target)
    if with_baseline:
        plain, given = recipe.target.model_copy(update=PLAIN), target.hidden_state_outputs
        models["baseline"] = Model("baseline", opened, plain, recipe, hidden_state_outputs=given, traces=target.traces)
    return models


def _fit_draft(draft: Model, target: Model) -> None:
    """Join a draft that reads hidden states to the target, which gives them."""
    opened, config = draft.checkpoint, draft.config
    check_kinds(target.config, config)
    if not isinstance(config, HeadConfig):
        return
    if draft.wanted.has_budget:
        raise RecipeError("draft.budget: a draft that reads hidden states does not support it; give draft.format")
    if isinstance(config, Eagle3Config):
        fit_head(opened, target.checkpoint)
    elif isinstance(config, MtpConfig):
        fit_mtp(opened, target.checkpoint)
    target.hidden_state_outputs = tuple(opened.config.hidden_state_outputs or ())


def check_models_early(models: Models, stages: Stages) -> None:
    """Read tokens and choose contexts; raises MxspecError for what would be refused after minutes, and prints notes."""
    for model in models.values():
        if model.name != "baseline":
            require_complete(model.checkpoint)
    for model in models.values():
        if model.name == "baseline":
            model.tokens = models["target"].tokens
        else:
            load_tokenizer(model.checkpoint.tokenizer)  # what the runtime would refuse
            model.tokens = TokenIds.read(model.checkpoint.tokenizer)
    recipe = models["target"].recipe
    for name, length in choose_contexts(recipe, {name: of.config for name, of in models.items()}).items():
        models[name].context_length = length
    for note in _first_notes(models):
        stages.note(note)


def _first_notes(models: Models) -> Iterator[str]:
    """What a user should know of the models before minutes are spent on them."""
    target = models["target"]
    if warning := check_prompt_parts(
        target.checkpoint.folder,
        target.tokens.size,
        is_encoder_decoder=bool(target.config.is_encoder_decoder),
    ):
        yield f"warning: {warning}"
    yield from dict.fromkeys(note for model in models.values() for note in model.checkpoint.notes)
    for warning in _pair_warnings(models):
        yield f"warning: {warning}"


def _pair_warnings(models: Models) -> Iterator[str]:
    """Where a model or the pair does less than one would think."""
    for model in models.values():
        warning = rope_warning(model.name, model.config, model.context_length)
        if model.name != "baseline" and warning is not None:
            yield warning
    if "draft" not in models:
        return
    target, draft = models["target"], models["draft"]
    if draft.context_length < target.context_length:
        yield (
            f"the draft knows {draft.context_length} of {target.context_length} positions: beyond them nothing is "
            "drafted"
        )
    of_target, of_draft = (
        sum(math.prod(tensor.shape) for tensor in model.checkpoint.tensors.values()) for model in (target, draft)
    )
    if of_draft > of_target:
        yield (
            f"the draft, with {of_draft / 1e6:,.1f} million weights, is larger than the target, with "
            f"{of_target / 1e6:,.1f} million: a draft helps if it is much smaller; is the target the other one?"
        )


@contextmanager
def unchanged(models: Collection[Model]) -> Iterator[None]:
    """Raise CheckpointError if a file of a checkpoint was changed or removed meanwhile, whatever else it led to."""
    try:
        yield
    except Exception:
        _require_unchanged(models)
        raise
    _require_unchanged(models)


def _require_unchanged(models: Collection[Model]) -> None:
    for model in models:
        model.checkpoint.require_unchanged()


_NO_HASH = "0" * 64


def check_prompt_parts(folder: Path, vocab_size: int, *, is_encoder_decoder: bool) -> str | None:
    """A warning about a chat template that cannot write one message, if there is such a template.

    Raises CheckpointError for ids that the tokenizer lacks, BundleError for a template that no bundle may have.
    """
    read_special_tokens(folder, _NO_HASH, vocab_size, is_encoder_decoder=is_encoder_decoder)
    read_rules(folder, vocab_size)
    read_sampling(folder)
    files = [name for name in (TEMPLATE, TOKENIZER_CONFIG) if (folder / name).is_file()]
    template = ChatTemplate.read(folder, files, str(folder))
    try:
        if template is not None:
            template.render([{"role": "user", "content": "hello"}])
    except GenerationError as error:
        return f"a chat of one message cannot be written: {error}"
    return None
