"""A recipe says which pair to compile, and how. It is a TOML file; checkpoint paths are relative to its folder."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from mxspec.formats.caches import CacheKind
from mxspec.formats.errors import RecipeError
from mxspec.formats.file_kind import is_gguf, what_it_is
from mxspec.formats.manifest import GuessesName, KMax
from mxspec.formats.validation import Strict, first_problem
from mxspec.formats.weight_format import (
    ELEMENTS,
    FP16_TILES,
    WEIGHT_FORMATS,
    Activations,
    named_by_user,
    taken_activations,
)

Positive = Annotated[int, Field(gt=0)]
FormatName = Annotated[str, AfterValidator(named_by_user)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]

Rounding = Literal["auto", "nearest", "scale", "gptq"]
ROUNDINGS: tuple[Rounding, ...] = get_args(Rounding)
Tied = Literal["once", "twice"]
TIED: tuple[Tied, ...] = get_args(Tied)
DraftTokensWay = Literal["tli", "text"]
DRAFT_TOKENS: tuple[DraftTokensWay, ...] = get_args(DraftTokensWay)

MTP = "mtp"  # a draft's checkpoint: the multi-token-prediction layer in the target's own

LESS, LEAST = "mxfp6_e2m3", "mxint8"  # formats that lose less than their like, and least

_BUDGET = re.compile(r"(\d+(?:\.\d+)?) ?bpw")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(:[\w.-]+(/[\w.-]+)*\.gguf)?")
_NO_NAME = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9_.-]")


class TargetRecipe(Strict):
    """The target: its checkpoint, the format of its matrices, and the type of the activations in its products.

    `formats` maps shell patterns for parameters, such as `lm_head.*` or `model.layers.0.*`, to formats; the first
    matching pattern counts. `keep_fp16` has patterns of parameters that stay in fp16 in any case. `activations` applies
    to products whose format supports it.

    `tied` says how to store a table that is both embedding and head: `once`, as the head's tiles, from which tokens are
    looked up, or `twice`, with the embedding in float16 as well. By default it is stored once if nothing is lost: in
    float16, and if the head is already MX in the checkpoint.

    `adapter` is a LoRA adapter in PEFT's format, a directory or a hub id, merged into the weights before rounding;
    `adapter_revision` is a revision of the adapter on the hub.

    With a `budget` such as "5.2bpw", the mean bits a weight of all matrices, or a `max_ratio`, a predicted ratio of
    perplexities, a format is chosen from `allowed_formats` for each matrix that no pattern names; by default from all
    MX formats.

    `unpublished` says why the checkpoint's folder is missing, and what to do.
    """

    checkpoint: str
    revision: str | None = None
    adapter: str | None = None
    adapter_revision: str | None = None
    unpublished: str | None = None
    format: FormatName = "mxfp6_e2m3"
    formats: tuple[tuple[str, FormatName], ...] = ()
    keep_fp16: tuple[str, ...] = ()
    budget: str | None = None
    max_ratio: Annotated[float, Field(gt=1)] | None = None
    allowed_formats: tuple[FormatName, ...] = ()
    activations: Activations = "int16"
    tied: Tied | None = None

    @field_validator("checkpoint")
    @classmethod
    def _not_empty(cls, checkpoint: str) -> str:
        if not checkpoint.strip():
            raise ValueError("expected a directory or a hub id")
        return checkpoint

    @field_validator("budget")
    @classmethod
    def _bits_a_weight(cls, budget: str | None) -> str | None:
        if budget is not None and not _BUDGET.fullmatch(budget):
            raise ValueError("expected bits a weight, such as '5.2bpw'")
        return budget

    @field_validator("activations")
    @classmethod
    def _fit_the_format(cls, activations: Activations, others: ValidationInfo) -> Activations:
        chosen = others.data.get("budget") or others.data.get("max_ratio")
        format_name = None if chosen else others.data.get("format")
        if format_name is not None and activations not in (taken := taken_activations(format_name)):
            takers = ", ".join(name for name in WEIGHT_FORMATS if activations in taken_activations(name))
            raise ValueError(
                f"{format_name} takes {' or '.join(taken)} activations, and {activations} ones need one of {takers}"
            )
        return activations

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if self.budget is not None and self.max_ratio is not None:
            raise ValueError("got both `budget` and `max_ratio`, expected one of them")
        if self.allowed_formats and not self.has_budget:
            raise ValueError("`allowed_formats` goes with `budget` or `max_ratio`")
        return self

    @property
    def has_budget(self) -> bool:
        """Whether formats are chosen by a budget."""
        return self.budget is not None or self.max_ratio is not None

    @property
    def budget_bits(self) -> float | None:
        """The bits a weight in `budget`."""
        found = None if self.budget is None else _BUDGET.fullmatch(self.budget)
        return None if found is None else float(found[1])

    @property
    def choices(self) -> tuple[str, ...]:
        """The formats to choose from."""
        return tuple(dict.fromkeys(self.allowed_formats)) or tuple(form.name for form in ELEMENTS.values())


class DraftRecipe(TargetRecipe):
    """The draft; by default its matrices stay in fp16.

    With the checkpoint "mtp" it is the target's own multi-token-prediction layer.

    With `vocabulary` its head keeps the rows of that many tokens, the most frequent ones of the file `text`, or of a
    text that the target writes. What the kept tokens cover is measured on the last tenth of the text.

    `tokens` says what a draft with another tokenizer proposes: the tokens that both have (`tli`), or what the target's
    tokenizer makes of the text that the draft writes (`text`); by default `tli` if most of its tokens are shared.
    """

    format: FormatName = FP16_TILES
    vocabulary: Positive | None = None
    text: str | None = None
    tokens: DraftTokensWay | None = None

    @model_validator(mode="after")
    def _of_the_target(self) -> Self:
        if self.checkpoint == MTP and (self.revision or self.adapter):
            raise ValueError("`revision` and `adapter` do not go with the checkpoint 'mtp', which is the target's")
        return self

    @model_validator(mode="after")
    def _vocabulary_without_a_budget(self) -> Self:
        if self.vocabulary is not None and self.has_budget:
            raise ValueError("`vocabulary` does not go with `budget` or `max_ratio`")
        return self


class Recipe(Strict):
    """A whole recipe. `context_length` is by default the target's; without `draft` the bundle has no draft model.

    `source_length` is the largest number of tokens that an encoder reads, by default the target's limit, or 512 if its
    encoder has no table of positions.

    `rounding` says how weights are rounded to an MX format: `nearest`, `scale` (the best of three scales a block),
    `gptq`, which compensates errors by the model's activations for about `calibration_tokens` tokens, or `auto`: gptq
    on as many of these tokens as two cores handle in `rounding_minutes`, but nearest if they handle fewer than 2,048
    and no text is given. The tokens are taken from the text file `calibrate`, at places that `seed` chooses; without
    one, the model writes them itself. A bundle's accuracy is measured if that takes at most a fifth of
    `rounding_minutes`; 0 measures nothing, and rounds to nearest without a text. With `max_loss` it is measured in any
    case, and a target that loses more per cent of its perplexity is refused.

    With `from_pickle`, weights that exist only as pickles are read by torch's weights-only loader. `about` and
    `verified` are for people: the purpose of the pair, and its tests. `ngram` and `suffix` are text files similar to
    the answers, from which the drafters of these names guess. `tasks` maps names that users give to prefixes of
    prompts.
    """

    name: Name
    about: str = ""
    verified: str = ""
    k_max: KMax = 8
    context_length: Positive | None = None
    source_length: Positive | None = None
    prefill_chunk: Positive = 128
    caches: CacheKind = "float16"
    rounding: Rounding = "auto"
    rounding_minutes: Annotated[float, Field(ge=0)] = 20.0
    calibrate: str | None = None
    calibration_tokens: Positive = 24576
    max_loss: Annotated[float, Field(ge=0)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    from_pickle: bool = False
    ngram: str | None = None
    suffix: str | None = None
    tasks: dict[Name, str] = Field(default_factory=dict)
    target: TargetRecipe
    draft: DraftRecipe | None = None
    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        if self.calibrate is None and any(model.has_budget for model in (self.target, self.draft) if model):
            raise ValueError("a budget needs `calibrate`, a text file like those that the model will see")
        return self

    @classmethod
    def of_checkpoints(cls, target: str, draft: str | None = None) -> Self:
        """The recipe of a target, and of a draft if given, with default settings.

        Its name is the target's; folders are relative to the working directory. Raises RecipeError for an invalid name.
        """
        name = _NO_NAME.sub("", Path(target).expanduser().resolve().name.removesuffix(".gguf")) or "model"
        models = {"target": {"checkpoint": target}} | ({} if draft is None else {"draft": {"checkpoint": draft}})
        return cls._of({"name": name} | models, Path.cwd())

    @classmethod
    def _of(cls, values: dict[str, Any], folder: Path, where: str = "") -> Self:
        """The recipe with these values, whose paths are relative to a folder; an error begins with `where`."""
        try:
            recipe = cls.model_validate_json(json.dumps(values, default=str))
        except ValidationError as problems:
            raise RecipeError(f"{where}{first_problem(problems, cls)}") from None
        recipe._folder = folder
        return recipe

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a recipe; raises RecipeError naming the first mistake, and the nearest known key for an unknown one."""
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as problem:
            raise RecipeError(f"recipe {path}: {problem.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            raise RecipeError(f"recipe {path}: {what_it_is(path) or f'not valid TOML: {problem}'}") from None
        return cls._of(found, path.absolute().parent, f"recipe {path}: ")

    def with_changes(self, **changes: Any) -> Self:
        """A copy with changed values; `target` and `draft` take a dict of changes, and None keeps a value."""
        merged = self.model_dump(mode="json", exclude_unset=True)  # defaults stay defaults
        for key, value in changes.items():
            if isinstance(value, dict):
                if given := {name: inner for name, inner in value.items() if inner is not None}:
                    merged[key] = (merged.get(key) or {}) | given
            elif value is not None:
                merged[key] = value
        return self._of(merged, self._folder)

    def with_draft(self, checkpoint: str) -> Self:
        """A copy with this draft; a folder is relative to the working directory."""
        merged = self.model_dump(mode="json", exclude_unset=True)
        settings = merged.get("draft") or {}
        of_the_former = ("checkpoint", "revision", "unpublished", "adapter", "adapter_revision")
        kept = {key: value for key, value in settings.items() if key not in of_the_former}
        draft = {"checkpoint": checkpoint if checkpoint == MTP else from_here(checkpoint)} | kept
        return self._of(merged | {"draft": draft}, self._folder)

    def source_of(self, model: TargetRecipe) -> TargetRecipe:
        """The model whose checkpoint holds this model: its own, but an MTP layer's is the target's."""
        return self.target if is_mtp(model) else model

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as in the manifest."""
        return self.model_dump(mode="json")

    def calibration_file(self) -> Path:
        """The text that calibrates rounding; requires `calibrate`."""
        assert self.calibrate is not None
        return self._folder / Path(self.calibrate).expanduser()

    def draft_text(self) -> Path | None:
        """The text whose most frequent tokens the draft's head keeps, if there is one."""
        if self.draft is None or self.draft.text is None:
            return None
        return self._folder / Path(self.draft.text).expanduser()

    def guess_texts(self) -> dict[GuessesName, Path]:
        """The texts for drafters without a model."""
        texts: dict[GuessesName, str | None] = {"ngram": self.ngram, "suffix": self.suffix}
        return {name: self._folder / Path(text).expanduser() for name, text in texts.items() if text is not None}

    def has_folder(self, checkpoint: str) -> bool:
        """Whether `checkpoint` names an existing directory or GGUF file."""
        return is_checkpoint(self._folder / Path(checkpoint).expanduser())

    def local_folder(self, given: str, what: str = "checkpoint") -> Path | None:
        """The directory or GGUF file that `given` names, or None for a hub id.

        `./x`, `../x`, `/x` and `~/x` are always directories; `org/name` is one if it exists beside the recipe. Raises
        RecipeError if it is neither; `what` names it in the message.
        """
        folder = self._folder / Path(given).expanduser()
        if self.has_folder(given):
            return folder
        if not is_hub_id(given):
            found = f"{folder} is a file, not a directory" if folder.is_file() else f"no directory {folder}"
            if hint := what_it_is(folder):
                raise RecipeError(f"{what} {given!r}: {hint}")
            raise RecipeError(f"{what} {given!r}: {found}, and not a hub id such as org/name")
        return None


def is_mtp(model: TargetRecipe) -> bool:
    """Whether a model is the MTP layer of the target."""
    return isinstance(model, DraftRecipe) and model.checkpoint == MTP


def kept_rows(model: TargetRecipe) -> int | None:
    """The number of rows that a model's head keeps, None for all."""
    return model.vocabulary if isinstance(model, DraftRecipe) else None


def from_here(given: str) -> str:
    """The absolute path of a folder, which is relative to the working directory; a hub id is returned as it is."""
    folder = Path(given).expanduser()
    return str(folder.absolute()) if is_checkpoint(folder) or not is_hub_id(given) else given


def less_loss(format_name: str, rounding: Rounding) -> str:
    """What a user can do about the loss of a target that was rounded to this format in this way."""
    ways = [] if format_name in (LESS, LEAST) else [f"--target-format {LESS}"]
    ways += ["--calibrate TEXT", "more --rounding-minutes"] if rounding == "gptq" else ["--rounding gptq"]
    least = "" if format_name == LEAST else f", and least with --target-format {LEAST}"
    return f"less is lost with {' or '.join(ways)}{least}"


def is_checkpoint(path: Path) -> bool:
    """Whether this is a directory, or a GGUF file."""
    return path.is_dir() or is_gguf(path)


def is_hub_id(checkpoint: str) -> bool:
    """Whether this could be the id of a repository on the hub rather than a path."""
    return _HUB_ID.fullmatch(checkpoint) is not None
