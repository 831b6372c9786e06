"""From a target to a trained head: the steps in order."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mxspec.compile.check.referee import judge
from mxspec.compile.checkpoint.checkpoint import require_complete
from mxspec.compile.checkpoint.open_checkpoint import hub_ids, open_checkpoint, require_folders
from mxspec.compile.checkpoint.settings.generation_config import read_ends
from mxspec.compile.checkpoint.tensors.derived import Ids
from mxspec.compile.guesses import encode_text
from mxspec.compile.heads.eagle3 import LAYERS, Eagle3Config
from mxspec.compile.planning.context import choose_contexts
from mxspec.compile.planning.model import Model
from mxspec.compile.planning.pair import TokenIds, usable_ids
from mxspec.compile.progress import Stages
from mxspec.compile.train.examples import Examples, is_held_out, read_examples
from mxspec.compile.train.head_file import (
    CONFIG,
    Start,
    check_replaceable,
    new_head,
    new_settings,
    published_head,
    write_files,
)
from mxspec.compile.train.lesson import SHORTEST, Acceptance
from mxspec.compile.train.texts import LENGTH, Source, TrainingWriter, answered, file_texts, invented, read_prompts
from mxspec.compile.train.training import Report, Training
from mxspec.compile.vocabulary.draft_vocabulary import most_frequent
from mxspec.compile.weights.calibration_text import pack_writer
from mxspec.formats.errors import BundleError, PairError, RecipeError
from mxspec.formats.folder_writer import FolderWriter
from mxspec.recipes.recipe import Recipe
from mxspec.recipes.recipe_text import read_recipe_text
from mxspec.runtime.calibration_text.write import AT_ONCE, open_writer, text_length
from mxspec.runtime.text.tokenizer import load_tokenizer

GROUP = 32  # texts that a killed run loses at most
TEXT_SHARE = 0.5  # of the time at most, for texts and states
LEAST = 20  # texts to train on
Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """What to train: `tokens` of text at most, `vocabulary` rows, and about so many `hours`; the format of its file."""

    target: str
    text: Path | None = None
    prompts: Path | None = None
    tokens: int = 200_000
    vocabulary: int = 8192
    hours: float = 2.0
    seed: int = 0
    start: Path | None = None
    weight_format: str = "fp16"


class Target:
    """The target's checkpoint, and what texts and a head need to know of it."""

    def __init__(self, wanted: TrainingSettings, files: ExitStack, stages: Stages) -> None:
        """Raises MxspecError for a checkpoint that cannot be compiled, or has no use for a head."""
        self.recipe = Recipe.of_checkpoints(wanted.target, None)
        require_folders(self.recipe, self.recipe.target)
        for checkpoint in hub_ids(self.recipe):
            stages.note(f"contacting the hub for {checkpoint}")
        self.checkpoint, _ = open_checkpoint(self.recipe, self.recipe.target, files)
        config, folder = self.checkpoint.config, self.checkpoint.folder
        if isinstance(config, Eagle3Config):
            raise PairError(f"{folder} is an EAGLE-3 head, which drafts for a target: name the target")
        if config.is_encoder_decoder:
            raise PairError(f"{folder} has an encoder, which EAGLE-3 heads do not support")
        require_complete(self.checkpoint)
        self.context = choose_contexts(self.recipe, {"target": config})["target"]
        vocabulary = TokenIds.read(self.checkpoint.tokenizer)
        self.known = usable_ids("target", vocabulary, len(self.checkpoint.named.get_output_embeddings().weight))
        _, self.ends = read_ends(folder, self.known)
        self.tokenizer = load_tokenizer(self.checkpoint.tokenizer)

    @property
    def length(self) -> int:
        """Tokens of a text, at most."""
        return text_length(self.context, LENGTH)

    @property
    def step_weights(self) -> int:
        """Number of weights that a step reads."""
        checkpoint = self.checkpoint
        every = sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values())
        tied = getattr(checkpoint.config, "tie_word_embeddings", False)
        return every - (0 if tied else math.prod(checkpoint.named.get_input_embeddings().weight.shape))


def train_head(wanted: TrainingSettings, output: Path, *, resume: bool, force: bool, stages: Stages) -> Acceptance:
    """Write a head for a target into the folder `output`; its held-out acceptance. Raises MxspecError.

    What is done lies in OUTPUT.partial until then, where `resume` goes on.
    """
    began = time.monotonic()
    with (
        FolderWriter(output, kind="head", check_replaceable=check_replaceable, force=force) as writer,
        ExitStack() as files,
    ):
        place = writer.rounding
        _check_work(place, resume=resume)
        target = Target(wanted, files, stages)
        source = _given(wanted, target)
        published = None if wanted.start is None else published_head(wanted.start, target.checkpoint)
        settings = new_settings(target.checkpoint, 1) if published is None else published[0]
        _keep_options(place, wanted, target, resume=resume)
        examples = Examples(place / "texts")
        if not (place / "texts.done").exists():
            size = len(settings[LAYERS]) * target.checkpoint.config.hidden_size
            needed = wanted.tokens * Examples.token_bytes(size)
            stages.note(f"texts and states take up to {needed / 1e6:,.0f} MB in {place}")
            writer.require_space(needed + target.step_weights * 2)
            until = began + TEXT_SHARE * wanted.hours * 3600
            _collect(wanted, target, source, settings[LAYERS], examples, place, until, stages)
        taught, held_out, counts = _split(examples, target.known)
        if len(taught) < LEAST or not held_out:
            raise RecipeError(
                f"got {len(taught)} texts to train on, expected at least {LEAST}: give more text, --tokens or --hours"
            )
        (place / "texts.done").touch()
        if published is None:
            rows = min(wanted.vocabulary, target.known)
            ids = most_frequent(np.arange(target.known), counts, target.ends, rows)
            settings["draft_vocab_size"] = rows
            start = new_head(settings, ids, target.checkpoint, wanted.seed)
        else:
            start = published[1]
        training = Training(start, examples, place / "training.pt", wanted.seed)
        stages.note(f"{len(taught)} texts to train on, {len(held_out)} held out; {_covers(start.ids, counts)}")
        cost = _step_cost(start, target)
        seconds = wanted.hours * 3600 - (time.monotonic() - began)
        best = training.run(taught, held_out, seconds, _tell(stages, cost))
        start.head.load_state_dict(best, strict=False)
        found = training.acceptance(held_out)
        target.checkpoint.require_unchanged()
        writer.publish_with(CONFIG, write_files(writer.folder, settings, start, best, wanted.weight_format))
    return found


def _check_work(place: Path, *, resume: bool) -> None:
    found = (place / "options.json").exists()
    if found and not resume:
        raise BundleError(f"{place.parent} was left by an interrupted run: go on with --resume, or remove it")
    if resume and not found:
        raise BundleError(f"--resume: {place.parent} does not exist, nothing was interrupted; leave it out")


def _given(wanted: TrainingSettings, target: Target) -> Callable[[TrainingWriter], Source]:
    """Makes the source of texts from what writes them; the files that the user names are read now."""
    if wanted.text is not None:
        text = read_recipe_text("--text", wanted.text).text
        ids = encode_text(target.tokenizer, text, target.known)
        if len(ids) < (LEAST + LEAST // 4) * target.length:
            raise RecipeError(
                f"--text {wanted.text}: got {len(ids):,} tokens, expected at least "
                f"{(LEAST + LEAST // 4) * target.length:,}"
            )
        return lambda writer: file_texts(ids, target.length)
    if wanted.prompts is not None:
        prompts = read_prompts(read_recipe_text("--prompts", wanted.prompts).text, f"--prompts {wanted.prompts}")
        return lambda writer: answered(prompts, writer)
    return invented


def _keep_options(place: Path, wanted: TrainingSettings, target: Target, *, resume: bool) -> None:
    """Write what texts and training depend on; raises RecipeError where an interrupted run had other options."""
    options = {key: str(value) for key, value in asdict(wanted).items() if key not in ("hours", "weight_format")}
    for key, path in (("text", wanted.text), ("prompts", wanted.prompts)):
        if path is not None:
            options[key] = hashlib.sha256(path.read_bytes()).hexdigest()
    options["target"] = target.checkpoint.fingerprint()
    file = place / "options.json"
    if not resume:
        place.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(options))
        return
    found = json.loads(file.read_text())
    for key, value in options.items():
        if found.get(key) != value:
            raise RecipeError(f"--resume: {key} is not that of the interrupted run in {place.parent}; remove it")


def _collect(
    wanted: TrainingSettings,
    target: Target,
    given: Callable[[TrainingWriter], Source],
    hidden_state_outputs: list[int],
    examples: Examples,
    place: Path,
    until: float,
    stages: Stages,
) -> None:
    """Have the target write texts and read them, until there are enough or time is up."""
    checkpoint = target.checkpoint
    with stages.step("referee target"):
        judge(checkpoint.config, target.context, hidden_state_outputs)
    folder, recipe = place / "writer", target.recipe
    model = Model("target", checkpoint, recipe.target, recipe, target.context, tuple(hidden_state_outputs))
    entry = pack_writer(model, folder, stages)
    session = open_writer(folder, entry, target.known, AT_ONCE, target.length)
    source = given(
        TrainingWriter(session, target.tokenizer, checkpoint.folder, frozenset(target.ends), target.length, wanted.seed)
    )
    tokens = sum(len(examples.ids(number)[0]) for number in range(examples.count))
    with stages.work("write and read", wanted.tokens) as advance:
        advance(tokens)
        while tokens < wanted.tokens and time.monotonic() < until:
            group = min(GROUP, max(AT_ONCE, (wanted.tokens - tokens) // target.length))
            texts = source(range(examples.count, examples.count + group))
            if not texts:
                break
            for example in read_examples(session, texts):
                examples.add(example)
                tokens += len(example.ids)
                advance(len(example.ids))
    del session
    shutil.rmtree(folder)


def _split(examples: Examples, known: int) -> tuple[list[int], list[int], Ids]:
    """The texts that teach, those that are held out, and how often each token is in what the target wrote to teach."""
    taught, held_out, counts = list[int](), list[int](), np.zeros(known, np.int64)
    for number in range(examples.count):
        ids, begin = examples.ids(number)
        if len(ids) - begin < SHORTEST:
            continue
        if is_held_out(number):
            held_out.append(number)
        else:
            taught.append(number)
            counts += np.bincount(ids[begin:], minlength=known)
    return taught, held_out, counts


def _covers(ids: Ids, counts: Ids) -> str:
    return f"the head proposes {len(ids):,} tokens, {counts[ids].sum() / max(1, counts.sum()):.1%} of the text"


def _step_cost(start: Start, target: Target) -> float:
    """Weights that a guess reads, over those that a step of the target reads."""
    read: int = sum(value.numel() for value in start.head.parameters() if value.requires_grad)
    return read / target.step_weights


def _tell(stages: Stages, cost: float) -> Report:
    def tell(passes: int, loss: float | None, found: Acceptance) -> None:
        speedup, k = found.speedup(cost)
        rates = " ".join(f"{rate:.3f}" for rate in found.rates)
        said = "" if loss is None else f"loss {loss:.3f}, "
        stages.note(
            f"after {passes} passes: {said}held-out acceptance {rates}; predicted speedup {speedup:.2f} with K = {k}, "
            f"if a guess costs {cost:.3f} steps"
        )

    return tell
