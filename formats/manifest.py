"""manifest.json: what a bundle holds and how it was made. docs/bundle.md gives the meaning of every key."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, ValidationError, field_validator, model_validator

from mxspec.formats.caches import CacheKind, cache_bytes, capacity_of, entry_size, kept_tokens
from mxspec.formats.errors import BundleError
from mxspec.formats.generation import NO_RULES, GenerationRules
from mxspec.formats.sampling import BUNDLED, PARAMETERS
from mxspec.formats.validation import Strict, first_problem, parse_json, with_fields
from mxspec.formats.weight_format import Activations

SCHEMA_VERSION = 4
LARGEST_K = 64  # tokens drafted in a round: far more than any pair gains by, and few enough to count through
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"

ModelName = Literal["target", "draft", "baseline"]
BlurName = Literal["int8_rows", "mxint8_caches"]
BLURS: dict[BlurName, str] = {"int8_rows": "int8 rows", "mxint8_caches": "MXINT8 caches"}
"""What a model may round beside its weights, as a sentence names it."""
GuessesName = Literal["ngram", "suffix"]  # as the drafters that they are for
LENDER: ModelName = "target"  # the model whose weights file may hold tables of the others
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]
KMax = Annotated[int, Field(gt=0, le=LARGEST_K)]
Share = Annotated[float, Field(gt=0, le=1)]
Nats = Annotated[float, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")


class FileEntry(Strict):
    """Size and SHA-256 of one file of the bundle."""

    bytes: Count
    sha256: Sha256


class TensorEntry(Strict):
    """One tensor of a weights file, and the checkpoint tensors it was made from.

    `origins`: types of blocks, such as Q4_K, that its sources were rounded to before.
    """

    name: str
    sources: tuple[str, ...]
    format: str
    shape: tuple[Count, ...]
    offset: Count
    bytes: Positive
    source_bytes: Count
    error: Annotated[float, Field(ge=0)] | None = None
    underflowed: Count = 0
    own_codes: bool = False
    origins: tuple[str, ...] = ()
    looked_up: bool = False


class RoundingEntry(Strict):
    """How MX matrices were rounded where that was not simply to nearest.

    `scale`: each block's scale is the best of three by squared error. `gptq`: errors are compensated with moments of
    the inputs, from `tokens` tokens of a text with this hash that `seed` chose, or without a hash, of a text that the
    model wrote; `nearest` says of each matrix that was rounded to nearest all the same why it was. `few` has by matrix
    the number of experts that few tokens chose: other tokens of the layer counted for them, too.
    """

    method: Literal["scale", "gptq"]
    text_sha256: Sha256 | None = None
    tokens: Count = 0
    seed: Count = 0
    damping: Annotated[float, Field(ge=0)] | None = None
    nearest: dict[str, str] = Field(default_factory=dict)
    few: dict[str, Count] = Field(default_factory=dict)


class RefereeEntry(Strict):
    """How far the graph's logits were from transformers' own in float32, as shares of the largest logit."""

    quiet: Annotated[float, Field(ge=0)]
    loud: Annotated[float, Field(ge=0)]
    own: Annotated[float, Field(ge=0)] | None = None
    int8_rows: Nats | None = None
    mxint8_caches: Nats | None = None


class CostEntry(Strict):
    """What packing costs in accuracy, measured on text that the packed model wrote.

    On text that the checkpoint would write, the perplexity of the model is exp(divergence) times the checkpoint's.
    """

    tokens: Positive
    divergence: Nats
    e2m3_error: Annotated[float, Field(ge=0)] | None = None


class ProductEntry(Strict):
    """One product of the graph, and the format that was chosen for it, or `fixed` by a pattern."""

    name: str
    format: str
    fixed: bool = False
    bytes: Positive
    saved_bytes: Count
    loss: Nats
    loss_a_byte: Nats
    losses: dict[str, Nats]


class BudgetEntry(Strict):
    """Which budget formats were chosen by, bits a weight or a ratio of perplexity, and what that led to."""

    budget_bits: Annotated[float, Field(gt=0)] | None = None
    max_ratio: Annotated[float, Field(gt=1)] | None = None
    allowed_formats: tuple[str, ...]
    reached_bits: Annotated[float, Field(gt=0)]
    predicted_ratio: Annotated[float, Field(ge=1)]
    text_sha256: Sha256
    tokens: Positive
    seed: Count
    products: tuple[ProductEntry, ...]


class EncoderEntry(Strict):
    """The encoder of a model: a graph of its own over the model's weights file."""

    graph: str
    layers: Positive
    context_length: Positive


class VocabularyEntry(Strict):
    """What a draft proposes and reads if it does not simply have the target's tokens: arrays in a safetensors file."""

    file: str
    reads: Positive
    foreign: bool = False
    writes_text: bool = False
    shared: Annotated[float, Field(ge=0, le=1)] | None = None
    text_shared: Annotated[float, Field(ge=0, le=1)] | None = None
    text_sha256: Sha256 | None = None
    tokens: Count = 0
    covered: Annotated[float, Field(ge=0, le=1)] | None = None
    lengthened: Annotated[float, Field(ge=1)] | None = None


class StatesEntry(Strict):
    """Hidden states: those that a graph gives of each of its tokens, or that a draft reads beside each of its own."""

    layers: Annotated[tuple[Count, ...], Field(min_length=1)]
    width: Positive
    own: Positive | None = None

    @property
    def size(self) -> int:
        """Number of values of a token."""
        return len(self.layers) * self.width


class ExpertsEntry(Strict):
    """The experts of a mixture: `count` of them in a layer, of which each token chooses `chosen`."""

    count: Positive
    chosen: Positive
    tensors: Annotated[tuple[str, ...], Field(min_length=1)]

    def read_share(self, tokens: int) -> float:
        """The share of the experts that `tokens` tokens are expected to choose: 1 - (1 - chosen / count)^tokens.

        Each chooses at random, as the tokens of texts nearly do where training balanced the experts.
        """
        return 1.0 - math.pow(1.0 - self.chosen / self.count, tokens)

    def product_of(self, tensor: str) -> str:
        """The product for which a budget chose a tensor's format: a layer's experts go by the name of their module."""
        return tensor.rpartition(".")[0] if tensor in self.tensors else tensor

    @model_validator(mode="after")
    def _chosen_of_them(self) -> Self:
        if self.chosen > self.count:
            raise ValueError(f"chosen: got {self.chosen} experts for a token, expected at most {self.count}")
        return self


class ModelEntry(Strict):
    """One compiled model: its files, the figures a runtime plans with, and its tensors.

    With an `encoder` the other figures are the decoder's.
    """

    graph: str
    weights: str
    architecture: str
    format: str
    activations: Activations = "int16"
    layers: Positive
    kv_heads: Positive
    head_size: Positive
    caches: CacheKind
    windows: tuple[Count, ...] = ()
    vocab_size: Positive
    context_length: Positive
    vocabulary: VocabularyEntry | None = None
    states: StatesEntry | None = None
    experts: ExpertsEntry | None = None
    encoder: EncoderEntry | None = None
    specializations: Annotated[tuple[Positive, ...], Field(min_length=1)]
    tensors: tuple[TensorEntry, ...]
    borrowed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    rounding: RoundingEntry | None = None
    notes: tuple[str, ...] = ()
    referee: RefereeEntry | None = None
    cost: CostEntry | None = None
    budget: BudgetEntry | None = None

    @property
    def graphs(self) -> tuple[str, ...]:
        """Names of its graphs: its own, and its encoder's if it has one."""
        return (self.graph,) if self.encoder is None else (self.graph, self.encoder.graph)

    @property
    def longest(self) -> int:
        """The most tokens that one of its graphs reads of a text."""
        return max(self.context_length, 0 if self.encoder is None else self.encoder.context_length)

    @property
    def cache_entry(self) -> int:
        """Size of the last dimension of its caches: one key, or value, of a head."""
        return entry_size(self.caches, self.head_size)

    @property
    def layer_windows(self) -> tuple[int, ...]:
        """Tokens that each layer sees; 0 for all."""
        return self.windows or (0,) * self.layers

    @property
    def call_tokens(self) -> int:
        """`call_tokens` of its specializations."""
        return call_tokens(self.specializations)

    def capacity_of(self, window: int) -> int:
        """Tokens of a text whose keys and values a layer with this window (0: none) keeps."""
        return capacity_of(window, self.context_length, self.call_tokens)

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of the keys and values of a text of so many tokens, in all layers."""
        kept = kept_tokens(self.layer_windows, tokens, self.context_length, self.call_tokens)
        return cache_bytes(self.caches, self.kv_heads, self.head_size, kept)

    @field_validator("windows")
    @classmethod
    def _none_where_all_see_all(cls, windows: tuple[int, ...]) -> tuple[int, ...]:
        return windows if any(windows) else ()

    @model_validator(mode="after")
    def _has_a_window_a_layer(self) -> Self:
        if self.windows and len(self.windows) != self.layers:
            raise ValueError(f"windows: got {len(self.windows)} for {self.layers} layers")
        return self

    @model_validator(mode="after")
    def _has_experts(self) -> Self:
        if self.experts is None:
            return self
        known, count = {tensor.name: tensor for tensor in self.tensors}, self.experts.count
        for name in self.experts.tensors:
            if name not in known:
                raise ValueError(f"experts: no tensor {name!r}")
            rows = sum(known[name].shape[:1])
            if rows % count:
                raise ValueError(f"experts: tensor {name!r} has {rows} rows, expected a multiple of {count}")
        return self

    @field_validator("tensors")
    @classmethod
    def _unique_names(cls, tensors: tuple[TensorEntry, ...]) -> tuple[TensorEntry, ...]:
        seen: set[str] = set()
        for tensor in tensors:
            if tensor.name in seen:
                raise ValueError(f"tensor {tensor.name!r} appears twice")
            seen.add(tensor.name)
        return tensors


class TokenizerEntry(Strict):
    """The tokenizer both models share; ids from `vocab_size` on are padding of the logits and must be masked."""

    sha256: Sha256
    vocab_size: Positive
    bos_token_id: Count | None = None
    eos_token_ids: tuple[Count, ...] = ()
    decoder_start: tuple[Count, ...] = ()


class GuessesEntry(Strict):
    """What drafters know of a text with this hash, that has so many tokens: arrays in one safetensors file."""

    file: str
    text_sha256: Sha256
    tokens: Positive


def call_tokens(specializations: Iterable[int]) -> int:
    """The most tokens that a call adds to a text whose layers have windows, and that it may go back by.

    They are a chunk of a prompt, or the K + 1 tokens of a round. A ring has room for them beside the window.
    """
    return max(*specializations, LARGEST_K + 1)


def _default_of(name: str) -> tuple[Any, Any]:
    """A field of the sampling defaults: its type with its range, and its default."""
    parameter = PARAMETERS[name]

    def check(value: float) -> float:
        if not parameter.accepts(value):
            raise ValueError(f"expected {parameter.expected}")
        return value

    kind = int if parameter.kind == "integer" else float
    return Annotated[kind, AfterValidator(check)], parameter.default


class SamplingDefaults(with_fields({name: _default_of(name) for name in BUNDLED})):  # type: ignore[misc]
    """How the model's makers sample from it: what a request that says nothing gets. Temperature 0 is greedy.

    Its fields are the parameters of formats/sampling.py that are `bundled`.
    """


class AnyManifest(BaseModel):
    """What manifests of all schema versions say: enough to know a bundle, and which files are its own."""

    schema_version: Positive
    name: str
    models: Annotated[dict[ModelName, dict[str, Any]], Field(min_length=1)]
    files: dict[str, FileEntry]
    versions: dict[str, str]

    @model_validator(mode="after")
    def _lists_its_files(self) -> Self:
        own = {str(model.get(key)) for model in self.models.values() for key in ("graph", "weights")} | {TOKENIZER}
        if missing := sorted(own - self.files.keys()):
            raise ValueError(f"file {missing[0]!r} is not in files")
        return self

    @classmethod
    def parse(cls, text: bytes) -> AnyManifest | Manifest:
        """Parse and check manifest.json, all of it where its version is known; raises BundleError."""
        parse_json(text, MANIFEST, BundleError)
        try:
            found = cls.model_validate_json(text, strict=True)
        except ValidationError as problems:
            raise BundleError(f"{MANIFEST}: {first_problem(problems, cls)}") from None
        return Manifest.parse(text) if found.schema_version == SCHEMA_VERSION else found


class Manifest(Strict):
    """The whole of manifest.json."""

    schema_version: int = SCHEMA_VERSION
    name: str
    k_max: KMax
    recipe: dict[str, Any]
    models: dict[ModelName, ModelEntry]
    guesses: dict[GuessesName, GuessesEntry] = Field(default_factory=dict)
    tokenizer: TokenizerEntry
    sampling: SamplingDefaults = SamplingDefaults()
    generation: GenerationRules = NO_RULES
    files: dict[str, FileEntry]
    versions: dict[str, str]

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if "target" not in self.models:
            raise ValueError("models: 'target' is missing")
        if not isinstance(self.tasks, dict) or not all(isinstance(text, str) for text in self.tasks.values()):
            raise ValueError("recipe.tasks: expected a text for each name")
        for name in self.files:
            if not PLAIN_NAME.fullmatch(name) or name == MANIFEST:
                raise ValueError(f"files: {name!r} is not the plain name of a file inside the bundle")
        owners = dict[str, str]()
        for where, name, owner in self._own_files():
            if name not in self.files:
                raise ValueError(f"{where}: file {name!r} is not in files")
            if name in owners:
                raise ValueError(f"{where}: file {name!r} already belongs to {owners[name]}")
            owners[name] = owner
        for model, entry in self.models.items():
            if model != "draft" and entry.vocab_size < self.tokenizer.vocab_size:
                raise ValueError(
                    f"models.{model}: {entry.vocab_size} logits for a tokenizer of {self.tokenizer.vocab_size} ids"
                )
            tokens = min(entry.vocab_size, self.tokenizer.vocab_size)
            if entry.vocabulary is not None:
                _check_vocabulary(model, entry)
                tokens = entry.vocabulary.reads
            _check_lengths(model, entry, self._tensors_of(model), tokens)
        self._check_states()
        without = [name for name, entry in self.models.items() if entry.encoder is None]
        if without and len(without) < len(self.models):
            raise ValueError(f"models.{without[0]}: has no encoder, and others of the bundle have one")
        if bool(self.tokenizer.decoder_start) == bool(without):
            what = "no encoder to go with it" if without else "expected the ids that a decoder begins with"
            raise ValueError(f"tokenizer.decoder_start: got {list(self.tokenizer.decoder_start)}, {what}")
        if TOKENIZER not in self.files or self.files[TOKENIZER].sha256 != self.tokenizer.sha256:
            raise ValueError(f"tokenizer.sha256 is not the hash that files gives for {TOKENIZER}")
        of_texts = (*self.tokenizer.eos_token_ids, *self.tokenizer.decoder_start, *self.generation.token_ids)
        for token in (*of_texts, self.tokenizer.bos_token_id or 0):
            if token >= self.tokenizer.vocab_size:
                raise ValueError(f"tokenizer: id {token} of {self.tokenizer.vocab_size}")
        return self

    @property
    def tasks(self) -> dict[str, str]:
        """What prompts begin with, by the names of the recipe's tasks."""
        found: dict[str, str] = self.recipe.get("tasks", {})
        return found

    def _check_states(self) -> None:
        """Raise ValueError unless drafts alone read states, and those that the other models give."""
        for model, entry in self.models.items():
            if entry.states is None:
                continue
            if entry.encoder is not None or (entry.states.own is not None) != (model == "draft"):
                what = "has an encoder" if entry.encoder else "gives states" if model == "draft" else "reads states"
                raise ValueError(f"models.{model}.states: {what}, which is not supported")
        read = None if (draft := self.models.get("draft")) is None else draft.states
        for model, entry in self.models.items():
            if read is not None and model != "draft" and entry.states != read.model_copy(update={"own": None}):
                raise ValueError(f"models.{model}.states: not those that the draft reads")

    def _own_files(self) -> Iterator[tuple[str, str, str]]:
        """Files that have one owner: the key that names a file, its name, and the owner."""
        for model, entry in self.models.items():
            yield from ((f"models.{model}", name, model) for name in (*entry.graphs, entry.weights))
            if entry.vocabulary is not None:
                yield f"models.{model}.vocabulary", entry.vocabulary.file, model
        for drafter, guesses in self.guesses.items():
            yield f"guesses.{drafter}", guesses.file, drafter

    def _tensors_of(self, model: ModelName) -> tuple[TensorEntry, ...]:
        """All that its graph reads: its own tensors, then those it borrows. Raises ValueError for a missing one."""
        entry, lender = self.models[model], self.models[LENDER]
        tables = entry.states is not None  # which may be lent, too
        lent = {t.name: t for t in lender.tensors if not t.sources or (tables and t.format == "fp16")}
        for name in entry.borrowed:
            if model == LENDER or name not in lent:
                raise ValueError(f"models.{model}: borrows {name!r}, which is not a computed table of the {LENDER}'s")
        return (*entry.tensors, *(lent[name] for name in entry.borrowed))

    @classmethod
    def parse(cls, text: bytes) -> Manifest:
        """Parse and check manifest.json; raises BundleError naming the first mistake."""
        found = parse_json(text, MANIFEST, BundleError)
        version = found.get("schema_version") if isinstance(found, dict) else None
        if version != SCHEMA_VERSION:
            raise BundleError(
                f"{MANIFEST}: schema version {version!r}, this mxspec reads {SCHEMA_VERSION}; "
                "compile the bundle again, or install the mxspec that wrote it"
            )
        try:
            return cls.model_validate_json(text)
        except ValidationError as problems:
            raise BundleError(f"{MANIFEST}: {first_problem(problems, cls)}") from None

    def to_json(self) -> str:
        """The text of manifest.json; without newer keys where they say nothing, for readers that do not know them."""
        left_out: dict[str, Any] = {"generation": True} if self.generation == NO_RULES else {}
        plain = {name: _said_nothing(entry) for name, entry in self.models.items()}
        return self.model_dump_json(indent=1, exclude=left_out | {"models": plain}) + "\n"


def _said_nothing(entry: ModelEntry) -> dict[str, Any]:
    """The newer keys of a model that say nothing."""
    found: dict[str, Any] = {
        key: True for key in ("vocabulary", "states", "experts", "windows") if not getattr(entry, key)
    }
    if entry.vocabulary is not None:
        found["vocabulary"] = {key for key in ("writes_text", "text_shared") if not getattr(entry.vocabulary, key)}
    return found


def _check_vocabulary(model: ModelName, entry: ModelEntry) -> None:
    """Raise ValueError unless this is a draft without an encoder, which has tokens if it writes text in them."""
    assert entry.vocabulary is not None
    if model != "draft" or entry.encoder is not None:
        raise ValueError(f"models.{model}: has a vocabulary, which only drafts without an encoder may have")
    if entry.vocabulary.writes_text and not entry.vocabulary.foreign:
        raise ValueError(f"models.{model}.vocabulary: the draft writes text, but its own tokens are missing")


def _check_lengths(model: ModelName, entry: ModelEntry, tensors: Iterable[TensorEntry], tokens: int) -> None:
    """Positions and calls stay within the tables: a table by token has a row for each token, others are by position."""
    longest = max(entry.specializations)
    if longest > entry.context_length:
        raise ValueError(f"models.{model}: specialization {longest} in a context of {entry.context_length}")
    for tensor in tensors:
        computed = tensor.name.rsplit(".")[-1].startswith(("cos", "sin")) and not tensor.sources
        needed = entry.longest if computed else min(entry.longest, tokens)
        looked_up = computed or tensor.format == "fp16" or tensor.looked_up
        if looked_up and len(tensor.shape) == 2 and tensor.shape[0] < needed:
            raise ValueError(
                f"models.{model}: context_length {entry.longest}, but table {tensor.name!r} has {tensor.shape[0]} rows"
            )
