"""A recipe: which pair to compile, and how. A TOML file; relative checkpoint paths count from where it lies."""

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

Rounding = Literal["nearest", "scale", "gptq"]
ROUNDINGS: tuple[Rounding, ...] = get_args(Rounding)
Tied = Literal["once", "twice"]
TIED: tuple[Tied, ...] = get_args(Tied)

_BUDGET = re.compile(r"(\d+(?:\.\d+)?) ?bpw")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(:[\w.-]+(/[\w.-]+)*\.gguf)?")
_NO_NAME = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9_.-]")


class TargetRecipe(Strict):
    """The target: where its checkpoint is, the format of its matrices, and what its products make of their rows.

    `formats` gives other formats to the parameters that shell patterns such as `lm_head.*` or `model.layers.0.*` name,
    the first that matches; `keep_fp16` holds patterns of those to keep in fp16 whatever else is said. `activations` is
    for the products whose format can take it; the others stay as they are.

    `tied` says how a table that is embedding and head is stored: `once`, as the head's tiles, in which tokens are then
    looked up, or `twice`, the embedding as float16 beside them. Without it that is once where nothing is lost: in
    float16, and where the head is MX in the checkpoint already.

    `adapter` is a LoRA adapter in PEFT's format, a directory or a hub id, merged into the weights before they are
    rounded; `adapter_revision` is of the latter.

    With a `budget` such as "5.2bpw", bits a weight of all matrices, or a `max_ratio` of perplexity, which is predicted,
    the format of each matrix that no pattern names is chosen among `allowed_formats`, all MX formats if there are none.

    `unpublished` says why the folder of a checkpoint is not there, and what to do.
    """

    checkpoint: str
    revision: str | None = None
    adapter: str | None = None
    adapter_revision: str | None = None
    unpublished: str | None = None
    format: FormatName = "mxfp6_e3m2"
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
        """Whether formats are to be chosen."""
        return self.budget is not None or self.max_ratio is not None

    @property
    def budget_bits(self) -> float | None:
        """The bits a weight that `budget` says."""
        found = None if self.budget is None else _BUDGET.fullmatch(self.budget)
        return None if found is None else float(found[1])

    @property
    def choices(self) -> tuple[str, ...]:
        """The formats to choose from."""
        return tuple(dict.fromkeys(self.allowed_formats)) or tuple(form.name for form in ELEMENTS.values())


class DraftRecipe(TargetRecipe):
    """The draft; its matrices stay fp16 unless told otherwise."""

    format: FormatName = FP16_TILES


class Recipe(Strict):
    """A whole recipe. Without `context_length` the bundle takes what the target knows, without `draft` it has none.

    `source_length` is the most tokens of a source, which an encoder reads; without it what the target's encoder knows,
    or 512 where it has no table of positions.

    `rounding` is how matrices are brought onto the grid of an MX format: `nearest`, `scale` (the best of three scales a
    block) or `gptq`, which compensates errors by what about `calibration_tokens` tokens of the text file `calibrate`,
    from places that `seed` chooses, make of the model. With `from_pickle` weights that are there as pickles alone are
    read by torch's weights-only loader. `about` and `verified` are for people: what the pair is for, and what it was
    tried with. `ngram` and `suffix` are text files like the answers: what drafters of these names guess by. `tasks`
    are what prompts begin with, by the names under which users ask for it.
    """

    name: Name
    about: str = ""
    verified: str = ""
    k_max: KMax = 8
    context_length: Positive | None = None
    source_length: Positive | None = None
    prefill_chunk: Positive = 128
    cache_dtype: Literal["float16", "float32"] = "float16"
    rounding: Rounding = "nearest"
    calibrate: str | None = None
    calibration_tokens: Positive = 32768
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
        if self.rounding == "gptq" and self.calibrate is None:
            raise ValueError("rounding 'gptq' needs `calibrate`, a text file like those that the model will see")
        if self.calibrate is None and any(model.has_budget for model in (self.target, self.draft) if model):
            raise ValueError("a budget needs `calibrate`, a text file like those that the model will see")
        return self

    @classmethod
    def of_checkpoints(cls, target: str, draft: str | None = None) -> Self:
        """The recipe of a target, and of a draft if there is one, with every setting left to its default.

        Its name is the target's; folders count from the working directory. Raises RecipeError for a name that is none.
        """
        name = _NO_NAME.sub("", Path(target).expanduser().resolve().name.removesuffix(".gguf")) or "model"
        models = {"target": {"checkpoint": target}} | ({} if draft is None else {"draft": {"checkpoint": draft}})
        try:
            recipe = cls.model_validate({"name": name} | models)
        except ValidationError as problems:
            raise RecipeError(first_problem(problems, cls)) from None
        recipe._folder = Path.cwd()
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
        try:
            recipe = cls.model_validate_json(json.dumps(found, default=str))
        except ValidationError as problems:
            raise RecipeError(f"recipe {path}: {first_problem(problems, cls)}") from None
        recipe._folder = path.absolute().parent
        return recipe

    def with_changes(self, **changes: Any) -> Self:
        """A copy with other values; `target` and `draft` take a dict of changes, and None leaves a value as it is."""
        merged = self.model_dump(mode="json", exclude_unset=True)  # what was left to the default stays so
        for key, value in changes.items():
            if isinstance(value, dict):
                if given := {name: inner for name, inner in value.items() if inner is not None}:
                    merged[key] = (merged.get(key) or {}) | given
            elif value is not None:
                merged[key] = value
        try:
            changed = type(self).model_validate_json(json.dumps(merged))
        except ValidationError as problems:
            raise RecipeError(first_problem(problems, type(self))) from None
        changed._folder = self._folder
        return changed

    def with_draft(self, checkpoint: str) -> Self:
        """A copy with this draft; a folder counts from the working directory."""
        merged = self.model_dump(mode="json", exclude_unset=True)
        settings = merged.get("draft") or {}
        of_the_former = ("checkpoint", "revision", "unpublished", "adapter", "adapter_revision")
        kept = {key: value for key, value in settings.items() if key not in of_the_former}
        draft = {"checkpoint": from_here(checkpoint)} | kept
        changed = type(self).model_validate_json(json.dumps(merged | {"draft": draft}))
        changed._folder = self._folder
        return changed

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as the manifest keeps them."""
        return self.model_dump(mode="json")

    def calibration_file(self) -> Path:
        """The text that calibrates rounding; only where `calibrate` is given."""
        assert self.calibrate is not None
        return self._folder / Path(self.calibrate).expanduser()

    def guess_texts(self) -> dict[GuessesName, Path]:
        """The texts of drafters that need no model."""
        texts: dict[GuessesName, str | None] = {"ngram": self.ngram, "suffix": self.suffix}
        return {name: self._folder / Path(text).expanduser() for name, text in texts.items() if text is not None}

    def has_folder(self, checkpoint: str) -> bool:
        """Whether `checkpoint` names a directory, or a GGUF file, that is there."""
        return is_checkpoint(self._folder / Path(checkpoint).expanduser())

    def local_folder(self, given: str, what: str = "checkpoint") -> Path | None:
        """The directory or GGUF file that `given` names, or None for a hub id.

        Raises RecipeError for neither, saying `what` it is.

        `./x`, `../x`, `/x` and `~/x` are always directories, `org/name` is one if it exists beside the recipe.
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


def from_here(given: str) -> str:
    """A folder that somebody names, counted from the working directory; a hub id as it is."""
    folder = Path(given).expanduser()
    return str(folder.absolute()) if is_checkpoint(folder) or not is_hub_id(given) else given


def is_checkpoint(path: Path) -> bool:
    """Whether this is a directory, or a GGUF file."""
    return path.is_dir() or is_gguf(path)


def is_hub_id(checkpoint: str) -> bool:
    """Whether this could be the id of a repository on the hub, and is not a path that looks like one."""
    return _HUB_ID.fullmatch(checkpoint) is not None
