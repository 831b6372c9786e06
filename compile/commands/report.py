"""The report of a bundle, as tables or as one JSON object, both made from the manifest alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from mxspec.compile.checkpoint.settings.generation_config import shorten_json
from mxspec.compile.commands.budget_table import budget_line, budget_table
from mxspec.formats.caches import cache_bytes
from mxspec.formats.generation import GenerationRules
from mxspec.formats.manifest import (
    BLURS,
    LENDER,
    CostEntry,
    Manifest,
    ModelEntry,
    RefereeEntry,
    RoundingEntry,
    StatesEntry,
    TensorEntry,
    VocabularyEntry,
)
from mxspec.formats.weight_format import ELEMENTS, WEIGHT_FORMATS
from mxspec.recipes.recipe import less_loss

NOTICEABLE = 0.01  # cost in perplexity from which a better format is named
LARGE = 0.05  # and from which the last line warns
_LAYER = re.compile(r"(^|\.)\d+\.")


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Matrices of one format that differ only in their layer, or all small tensors."""

    name: str
    format: str
    tensors: tuple[TensorEntry, ...]

    @property
    def source_bytes(self) -> int:
        """Bytes in the checkpoint."""
        return sum(tensor.source_bytes for tensor in self.tensors)

    @property
    def bytes(self) -> int:
        """Bytes in the bundle."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def worst_error(self) -> float | None:
        """Largest relative error of its tensors, or None for constants."""
        return max((tensor.error for tensor in self.tensors if tensor.error is not None), default=None)

    @property
    def underflowed(self) -> int:
        """The number of nonzero values that became zero."""
        return sum(tensor.underflowed for tensor in self.tensors)


def group_tensors(tensors: Sequence[TensorEntry]) -> list[TensorGroup]:
    """The groups, in the order of their first tensors."""
    groups: dict[tuple[str, str], list[TensorEntry]] = {}
    for tensor in tensors:
        groups.setdefault((_group_name(tensor), tensor.format), []).append(tensor)
    return [TensorGroup(name, kind, tuple(members)) for (name, kind), members in groups.items()]


def _group_name(tensor: TensorEntry) -> str:
    """The name of a group, such as self_attn.o_proj: without everything up to the layer, and without `.weight`."""
    if not tensor.sources:
        return "constant tables"
    if len(tensor.shape) < 2:
        return "norms and biases"
    name = _LAYER.split(tensor.name)[-1].removesuffix(".weight").removeprefix("model.")
    return name.rsplit(".")[-1] if "+" in name else name


def checkpoint_bytes(entry: ModelEntry) -> int:
    """The size of the model in its checkpoint; a tied table that the bundle stores twice counts once."""
    taken = {tensor.sources: tensor.source_bytes for tensor in entry.tensors}
    return sum(taken.values())


def print_report(path: Path, manifest: Manifest, console: Console) -> None:
    """Print a table for each model, then lines about the whole bundle."""

    def say(lines: Iterable[str]) -> None:
        for line in lines:
            console.print(line, highlight=False, soft_wrap=True)

    for name, entry in manifest.models.items():
        say(["", _model_title(name, entry)])
        console.print(_model_table(entry))
        say(_model_lines(entry, manifest.models["target"].layers))
        if entry.budget is not None:
            console.print(budget_table(entry.budget))
            say([budget_line(entry.budget)])
        say(_checked_lines(entry))
    for drafter, guesses in manifest.guesses.items():
        size = _megabytes(manifest.files[guesses.file].bytes)
        say([f"{drafter}: {guesses.tokens:,} tokens of the text {guesses.text_sha256[:12]}, {size} MB"])
    say(_generation_lines(manifest.generation))
    total = sum(file.bytes for file in manifest.files.values())
    made_by = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    say([f"{path}: {_megabytes(total)} MB, K up to {manifest.k_max}, {manifest.tokenizer.vocab_size} token ids"])
    say([f"  made by {made_by}"])


def _model_lines(entry: ModelEntry, layers: int) -> Iterator[str]:
    """How a model is stored; its target has so many layers."""
    yield _packed_line(entry)
    if own := sum(tensor.own_codes for tensor in entry.tensors):
        yield f"  {own} matrices hold the checkpoint's own codes and scales, bit for bit"
    if origins := sorted({origin for tensor in entry.tensors for origin in tensor.origins}):
        yield f"  rounded a second time: the checkpoint's matrices are {', '.join(origins)}"
    yield from _cache_lines(entry)
    for tensor in entry.tensors:
        if tensor.looked_up:
            yield f"  {tensor.name} is the embedding, too: tokens are looked up in its tiles"
    if entry.vocabulary is not None:
        yield _vocabulary_line(entry.vocabulary, entry.vocab_size)
    if entry.states is not None:
        yield _states_line(entry.states, layers)
    if entry.rounding is not None:
        yield from _rounding_lines(entry.rounding)


def _checked_lines(entry: ModelEntry) -> Iterator[str]:
    """What was measured of a model, and what its checkpoint has beside it."""
    if entry.referee is not None:
        yield _referee_line(entry.referee)
    if entry.cost is not None:
        yield from _cost_lines(entry.cost)
    if entry.borrowed:
        yield f"  read in the {LENDER}'s file, the same there: {', '.join(entry.borrowed)}"
    for note in entry.notes:
        yield f"  {note}"
    if entry.ignored:
        shown = ", ".join(entry.ignored[:3]) + (" …" if len(entry.ignored) > 3 else "")
        yield f"  {len(entry.ignored)} tensors of the checkpoint are not used: {shown}"


def _generation_lines(rules: GenerationRules) -> list[str]:
    """Lines about the checkpoint's rules for single tokens, and about settings that are not applied."""
    said = (
        (rules.suppressed, "never written: token ids {}"),
        (rules.suppressed_first, "never written first: token ids {}"),
        (rules.bad_words, "never written one after another: token ids {}"),
        (rules.forced_last, "an answer at its limit ends with token id {}"),
    )
    lines = [line.format(_first_of(ids)) for ids, line in said if ids]
    settings = ", ".join(f"{key} {shorten_json(value)}" for key, value in rules.not_applied.items())
    return [*lines, f"generation settings of the checkpoint that are not applied: {settings}"] if settings else lines


def _first_of(ids: Sequence[object]) -> str:
    return ", ".join(map(str, ids[:8])) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")


def _referee_line(referee: RefereeEntry) -> str:
    own = "" if referee.own is None else f"; by {referee.own:.0e} with the weights above"
    twin = max(referee.quiet, referee.loud)
    found = {words: getattr(referee, name) for name, words in BLURS.items()}
    blur = "".join(f"; {words} change it by {nats:.1e} nats (KL)" for words, nats in found.items() if nats is not None)
    return f"  differs from transformers by {twin:.0e} of the largest logit in a small random twin{own}{blur}"


def _states_line(states: StatesEntry, layers: int) -> str:
    """Which hidden states the graph gives, or a draft reads, of a target with so many layers."""
    verb, whose = ("gives", "") if states.own is None else ("reads", " of the target")
    after = {layers: "the final norm", layers + 1: "the output matrix"}
    inside = [str(layer) for layer in states.layers if layer not in after]
    places = [f"layers {', '.join(inside)}"] if inside else []
    places += [after[layer] for layer in states.layers if layer in after]
    return f"  {verb} the hidden states that enter {' and '.join(places)}{whose}"


def _vocabulary_line(vocabulary: VocabularyEntry, rows: int) -> str:
    """How many tokens the draft proposes, and what that is of a held-out text."""
    said = ["  writes text" if vocabulary.writes_text else f"  proposes {rows:,} tokens"]
    if vocabulary.shared is not None:
        said.append(
            f"with a tokenizer of its own, which shares {vocabulary.shared:.1%} of its tokens with the target's"
        )
    if vocabulary.text_shared is not None:
        said.append(f"{vocabulary.text_shared:.1%} of those of a held-out text")
    if vocabulary.covered is not None:
        said.append(f"{vocabulary.covered:.1%} of the {vocabulary.tokens:,} held-out tokens of its text")
    if vocabulary.lengthened is not None:
        said.append(f"each token of the target's read as {vocabulary.lengthened:.2f} of its own")
    return ", ".join(said)


def _cost_lines(cost: CostEntry) -> Iterator[str]:
    share = math.expm1(cost.divergence)
    yield (
        f"  costs about {share:.1%} of perplexity, measured on {cost.tokens:,} tokens that it wrote "
        f"(KL {cost.divergence:.4f} nats)"
    )
    if cost.e2m3_error is not None and share > NOTICEABLE and cost.e2m3_error < 1:
        yield (
            f"  --target-format mxfp6_e2m3 takes the same bytes, with {cost.e2m3_error:.2f} times the squared rounding "
            "error for these weights"
        )


def print_loss(target: ModelEntry, console: Console) -> None:
    """Warn of a target that loses much, or was rounded to nearest without a measurement."""
    loss = None if target.cost is None else math.expm1(target.cost.divergence)
    mx = {form.name for form in ELEMENTS.values()}
    nearest = target.rounding is None and any(t.format in mx and not t.own_codes for t in target.tensors)
    if loss is not None and loss > LARGE:
        said = f"the target loses about {loss:.0%} of its perplexity"
    elif loss is None and nearest:
        said = "the target was rounded to nearest, and its loss was not measured (speccheck accuracy measures it)"
    else:
        return
    ways = less_loss(target.format, "nearest" if target.rounding is None else target.rounding.method)
    console.print(f"warning: {said}: {ways}", style="bold yellow", highlight=False, soft_wrap=True)


def _rounding_lines(rounding: RoundingEntry) -> Iterator[str]:
    if rounding.method == "scale":
        yield "  rounded with the best of three scales a block"
        return
    text = "that the model wrote" if rounding.text_sha256 is None else f"of the text {rounding.text_sha256[:12]}"
    yield f"  rounded by gptq on {rounding.tokens:,} tokens {text}, seed {rounding.seed}"
    for name, reason in rounding.nearest.items():
        yield f"  {name} was rounded to nearest: {reason}"
    if rounding.few:
        yield (
            f"  {sum(rounding.few.values()):,} matrices of experts that few tokens chose were rounded by other tokens "
            "of their layers as well"
        )


def _cache_lines(entry: ModelEntry) -> Iterator[str]:
    """What a token takes, and what windows save of a text as long as the context."""
    of_token = entry.cache_bytes(1)
    in_half = cache_bytes("float16", entry.kv_heads, entry.head_size, entry.layers)
    beside = "" if entry.caches == "float16" else f"; {in_half:,} in float16"
    yield f"  caches in {entry.caches}: {of_token:,} bytes a token{beside}"
    if entry.windows:
        context, sizes = entry.context_length, " and ".join(f"{size:,}" for size in sorted(set(entry.windows) - {0}))
        kept, whole = entry.cache_bytes(context), of_token * context
        yield (
            f"  {sum(map(bool, entry.windows))} of {entry.layers} layers have windows of {sizes}: "
            f"{kept:,} bytes for {context:,} tokens, {kept / whole:.1%} of what they take without windows"
        )


def _model_title(name: str, entry: ModelEntry) -> str:
    lengths = ", ".join(map(str, entry.specializations))
    stored = entry.format + ("" if entry.activations == "int16" else f" with {entry.activations} activations")
    return f"{name}: {entry.architecture}, {stored}, context {entry.context_length}, checked at {lengths}"


def _model_table(entry: ModelEntry) -> Table:
    groups = group_tensors(entry.tensors)
    lossy = any(group.underflowed for group in groups)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("tensors (MB)", overflow="fold", min_width=20)
    table.add_column("format")
    for column in ("count", "before", "after", "error", *(["to zero"] if lossy else [])):
        table.add_column(column, justify="right")
    for group in groups:
        error = "" if group.worst_error is None else f"{group.worst_error:.2e}" if group.worst_error else "0"
        before = _megabytes(group.source_bytes) if group.source_bytes else ""
        row = [group.name, group.format, str(len(group.tensors)), before, _megabytes(group.bytes), error]
        table.add_row(*row, *([str(group.underflowed)] if lossy else []))
    after = sum(tensor.bytes for tensor in entry.tensors)
    table.add_section()
    table.add_row("all", "", str(len(entry.tensors)), _megabytes(checkpoint_bytes(entry)), _megabytes(after))
    return table


def _packed_line(entry: ModelEntry) -> str:
    packed = [tensor for tensor in entry.tensors if tensor.format in WEIGHT_FORMATS]
    after, as_fp16 = sum(tensor.bytes for tensor in packed), sum(2 * math.prod(tensor.shape) for tensor in packed)
    worst = max((tensor.error for tensor in packed if tensor.error is not None), default=0.0)
    whole, before = sum(tensor.bytes for tensor in entry.tensors), checkpoint_bytes(entry)
    return (
        f"  packed matrices: {_megabytes(after)} MB{_smaller(after, as_fp16, 'in fp16')}, "
        f"worst relative error {worst:.2e}; all tensors: {_megabytes(whole)} MB"
        f"{_smaller(whole, before, 'in the checkpoint')}"
    )


def _smaller(after: int, before: int, where: str) -> str:
    return f", {1 - after / before:.1%} smaller than {where}" if 0 < after < before else ""


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.2f}"


def as_json(path: Path, manifest: Manifest) -> dict[str, Any]:
    """The one object of --json."""
    return {
        "bundle": str(path),
        "name": manifest.name,
        "schema_version": manifest.schema_version,
        "k_max": manifest.k_max,
        "bytes": sum(file.bytes for file in manifest.files.values()),
        "models": {name: _model_json(entry) for name, entry in manifest.models.items()},
        "generation": manifest.generation.model_dump(mode="json"),
        "guesses": {name: entry.model_dump(mode="json") for name, entry in manifest.guesses.items()},
        "versions": manifest.versions,
    }


# Fields of a model that the report has as they are in the manifest.
_AS_STORED = {
    "architecture", "format", "activations", "context_length", "caches", "windows", "specializations", "borrowed",
    "ignored", "notes", "rounding", "budget", "vocabulary", "states", "cost", "referee",
}  # fmt: skip


def _model_json(entry: ModelEntry) -> dict[str, Any]:
    return entry.model_dump(mode="json", include=_AS_STORED) | {
        "cache_bytes": entry.cache_bytes(entry.context_length),
        "checkpoint_bytes": checkpoint_bytes(entry),
        "weight_bytes": sum(tensor.bytes for tensor in entry.tensors),
        "groups": [
            {
                "name": group.name,
                "format": group.format,
                "tensors": len(group.tensors),
                "checkpoint_bytes": group.source_bytes,
                "bytes": group.bytes,
                "worst_error": group.worst_error,
                "underflowed": group.underflowed,
                "own_codes": sum(tensor.own_codes for tensor in group.tensors),
                "origins": sorted({origin for tensor in group.tensors for origin in tensor.origins}),
                "looked_up": sum(tensor.looked_up for tensor in group.tensors),
            }
            for group in group_tensors(entry.tensors)
        ],
    }
