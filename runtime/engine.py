"""The engine: a bundle made ready to write many texts at once, and to score."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self

from tokenizers import Tokenizer

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import ContextLengthError, GenerationError, MxspecError, UnavailableError, did_you_mean
from mxspec.formats.manifest import ModelName
from mxspec.formats.sampling import PARAMETERS
from mxspec.runtime import ops
from mxspec.runtime.beams.search import Search
from mxspec.runtime.drafters.draft import Draft, StatesDraft
from mxspec.runtime.drafters.drafter import Drafter
from mxspec.runtime.drafters.known import drafters_of
from mxspec.runtime.drafters.text_draft import TextDraft
from mxspec.runtime.grammars.matcher import Matcher
from mxspec.runtime.grammars.trial import Trial
from mxspec.runtime.handle import Answer, Handle, Mailbox
from mxspec.runtime.models.read_beginning import read_beginning, write_beginning
from mxspec.runtime.models.reader import Reader, StatesReader
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.weight_reads import known_growth
from mxspec.runtime.policy.cost_table import CostTable, read_table, table_path, write_table
from mxspec.runtime.request import Request, require_integer
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import Shaper
from mxspec.runtime.scheduling.chosen_settings import choose_settings
from mxspec.runtime.scheduling.scheduled_text import ScheduledText
from mxspec.runtime.scheduling.scheduler import Scheduler
from mxspec.runtime.scheduling.text import Text
from mxspec.runtime.scheduling.worker import QueueFullError, Worker
from mxspec.runtime.settings import TypedControlTokens
from mxspec.runtime.text.chat import ChatTemplate, Message, characters
from mxspec.runtime.text.stream import TextStream
from mxspec.runtime.text.tokenizer import check_ids, encode_prompt, encode_rendered, load_tokenizer, longest_text
from mxspec.runtime.verifiers.measured import Measured

SLOTS = 8
KEPT = ".promptcache"  # how the names of files with what a slot held end
WORTH_KEEPING = 64  # tokens
QUEUE = 1024  # requests that may wait


class Engine:
    """Runs one bundle: as many texts at a time as it has `slots`, each the very text that it would write alone.

    Safe from any number of threads; a thread of its own runs the models. `threads` is how many threads the process's
    operators work on (all usable cores by default); no result depends on it. While a text waits for its next token,
    a step reads as much of other prompts as takes `prefill_ms` milliseconds. More than `queue` requests that wait
    are refused. `shared_suffixes` bytes hold past answers: suffix decoding guesses by those of a text's own cache key.
    `cache_memory` is the most bytes that the key-value caches of all slots may take (any by default): past beginnings
    are dropped for new texts, which then wait for others to end.
    `model` "baseline" writes with the fp16 target, if the bundle holds it, for a comparison.
    Raises BundleError where the bundle is invalid or cannot be loaded.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        slots: int = SLOTS,
        threads: int | None = None,
        prefill_ms: float = 50.0,
        queue: int = QUEUE,
        shared_suffixes: int = 0,
        cache_memory: int | None = None,
        model: Literal["target", "baseline"] = "target",
    ) -> None:
        require_integer("slots", slots, 1)
        require_integer("queue", queue, 0)
        require_integer("shared_suffixes", shared_suffixes, 0)
        if cache_memory is not None:
            require_integer("cache_memory", cache_memory, 1)
        if not isinstance(prefill_ms, int | float) or not prefill_ms > 0:
            raise GenerationError("prefill_ms", f"got {prefill_ms!r}, expected a positive number of milliseconds")
        self.bundle = Bundle.open(path)
        self.tokenizer = load_tokenizer(self.bundle.tokenizer_path)
        self.template = ChatTemplate.of(self.bundle)
        if threads is not None:
            require_integer("threads", threads, 1)
            ops.set_threads(threads)
        manifest = self.bundle.manifest
        self.model: ModelName = model
        self.target = Session.of(self.bundle, model, slots)
        self.draft = Session.of(self.bundle, "draft", slots) if "draft" in manifest.models else None
        self._prompt_bytes = longest_text(self.tokenizer, self.prompt_capacity)
        entry = manifest.tokenizer
        self.trial = Trial(self.tokenizer, entry.eos_token_ids, entry.vocab_size)  # of requests' grammars
        drafting = None if self.draft is None else _draft_of(self.draft, self.target, self.tokenizer)
        self._drafters = drafters_of(self.bundle, drafting, shared_suffixes)
        self._measured = Measured()
        growth = known_growth(self.target.entry)
        scheduler = Scheduler(self.target, self.draft, manifest.k_max, prefill_ms, cache_memory, growth)
        costs = table_path(self.bundle, model)
        if (table := read_table(costs)) is not None:
            table.teach(scheduler.load)
        self._scheduler = scheduler
        self._worker = Worker(scheduler, queue)
        self._close = weakref.finalize(self, _close, self._worker, scheduler, costs)
        self._idle_readers: dict[ModelName, list[Reader | StatesReader]] = {}

    def close(self) -> None:
        """End all texts as cancelled; the engine takes no further request."""
        self._close()
        self.trial.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def drafters(self) -> Mapping[str, Drafter]:
        """The drafters that the bundle allows, by name."""
        return MappingProxyType(self._drafters)

    @property
    def running(self) -> int:
        """Number of texts that have a slot."""
        return self._worker.running

    @property
    def cache_bytes(self) -> int:
        """Bytes that the key-value caches of all slots take."""
        return self._scheduler.slots.cache_bytes

    # --- writing ---

    def generate(self, prompt: str | Sequence[int] | None = None, **settings: Any) -> Handle:
        """Begin a text; an iterator over its events as they happen, closed by Finished.

        The settings are the fields of Request. Mistakes are raised at once: GenerationError.
        """
        known = [field.name for field in fields(Request)]
        if unknown := next((name for name in settings if name not in known), None):
            raise GenerationError(unknown, f"unknown request setting{did_you_mean(unknown, known)}")
        return self.submit(Request(prompt=prompt, **settings))

    def submit(self, request: Request) -> Handle:
        """Begin the texts of a request, as soon as there is a slot. Raises GenerationError."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]) -> list[Handle]:
        """Begin several requests in the same step, as far as there are slots; if one is refused, no request begins."""
        begun = [(request, mailbox := Mailbox(), self._texts(request, mailbox)) for request in requests]
        for _, _, texts in begun:
            self._scheduler.check_memory(texts[0])
        self._worker.submit([texts for _, _, texts in begun])
        return [Handle(self, texts, mailbox, request.n, request.best_of is None) for request, mailbox, texts in begun]

    def run(self, requests: Iterable[Request]) -> Iterator[Answer | list[Answer]]:
        """The answers to many requests in their order, as many at a time as there are slots."""
        handles: list[tuple[Handle, bool]] = []
        ahead = 2 * self.target.slots  # so that a slot never waits for the caller
        for request in requests:
            while (handle := self._submitted(request, wait=bool(handles))) is None:
                yield _answers(*handles.pop(0))
            handles.append((handle, request.n > 1))
            if len(handles) >= ahead:
                yield _answers(*handles.pop(0))
        while handles:
            yield _answers(*handles.pop(0))

    def _submitted(self, request: Request, wait: bool) -> Handle | None:
        """Submit a request; None where the queue is full and the caller can `wait` for its earlier requests."""
        try:
            return self.submit(request)
        except QueueFullError:
            if wait:
                return None
            raise

    def wake(self) -> None:
        """Have the engine's thread look for cancelled texts."""
        self._worker.wake()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens that the tokenizer puts around a prompt, none of them twice."""
        return encode_prompt(self.tokenizer, text, self.bundle.manifest.tokenizer.bos_token_id)

    def template_for(self, typed: TypedControlTokens) -> ChatTemplate:
        """The chat template, by what typed control tokens are to be; raises GenerationError if there is none."""
        if self.template is None:
            return ChatTemplate.required(self.bundle)  # which raises
        return self.template if typed == "control" else self._template_keeping_typed

    @cached_property
    def _template_keeping_typed(self) -> ChatTemplate:
        assert self.template is not None
        return self.template.keeping_typed(self.tokenizer)

    def encode_within(self, text: str, *, rendered: bool = False, template: ChatTemplate | None = None) -> list[int]:
        """`encode` of a prompt, or of a `rendered` text, whose special tokens are written out, say by a `template`.

        Raises ContextLengthError for a text with more bytes than the context can hold, before it is encoded.
        """
        self._check_bytes(len(text))  # each character has a byte
        self._check_bytes(len(text.encode("utf-8", "surrogatepass")))
        spelled = (self.tokenizer, text) if template is None else template.spelled(self.tokenizer, text)
        if rendered:
            return encode_rendered(*spelled)
        return encode_prompt(*spelled, self.bundle.manifest.tokenizer.bos_token_id)

    def check_chat(self, messages: Sequence[Message]) -> None:
        """Raise ContextLengthError for a chat with more text than the context can hold, before it is rendered."""
        self._check_bytes(characters(messages))

    def _check_bytes(self, size: int) -> None:
        if size > self._prompt_bytes:
            raise ContextLengthError(
                "prompt",
                f"got {size:,} bytes, expected at most {self._prompt_bytes:,}: "
                f"the context holds {self.prompt_capacity:,} tokens",
            )

    def task(self, name: str) -> str:
        """The prefix of the prompts of a task of the bundle's recipe; raises GenerationError for an unknown name."""
        tasks = self.bundle.manifest.tasks
        if name not in tasks:
            known = ", ".join(tasks) if tasks else f"none, for bundle {self.bundle.path} has no tasks"
            raise GenerationError("task", f"got {name!r}, expected {known}{did_you_mean(name, tasks)}")
        return tasks[name]

    def check(self, token_ids: Sequence[int]) -> list[int]:
        """The token ids of a prompt, unchanged; raises GenerationError for invalid ids and for too many."""
        return self._checked(token_ids, self.prompt_capacity)

    @property
    def prompt_capacity(self) -> int:
        """Largest number of tokens of a prompt; with an encoder, of a source."""
        return self.target.source_capacity or self.target.capacity

    def drop_idle(self) -> None:
        """Forget what was read for texts that have ended, and give its memory back to the system."""
        self._worker.call(self._scheduler.slots.drop_idle)

    # --- prompts that were read before ---

    def save(self, prompt: str | Sequence[int], path: str | Path, *, cache_key: str = "") -> int:
        """Keep what the models have read of a prompt in a file, for load(); it is read first where no slot holds it.

        Returns its number of tokens. Raises GenerationError for an invalid prompt, and MxspecError where the file
        cannot be written, or an encoder reads the prompt.
        """
        if self.target.encoder is not None:
            raise MxspecError("prompt cache: not supported for a bundle with an encoder, which reads each source again")
        ids = self._checked(self.encode_within(prompt) if isinstance(prompt, str) else prompt, self.target.capacity)
        kept = self._worker.call(lambda: self._scheduler.beginning(ids, cache_key))
        if kept is None:
            self.generate(ids, max_new_tokens=1, temperature=0, cache_key=cache_key).result()
            kept = self._worker.call(lambda: self._scheduler.beginning(ids, cache_key))
        if kept is None:
            raise UnavailableError("prompt cache", "another text took the slot before the prompt was kept")
        write_beginning(Path(path), kept, self.bundle, self.model)
        return len(ids)

    def load(self, path: str | Path) -> int:
        """Give a slot what save() kept: texts that begin with its tokens, under its cache key, read only what follows.

        Returns its number of tokens. Raises MxspecError where the file is damaged, or was made with another bundle, and
        where no slot is idle.
        """
        kept = read_beginning(Path(path), self.bundle, self.model)
        try:
            check_ids(kept.tokens, self.bundle.manifest.tokenizer.vocab_size)
            self._worker.call(lambda: self._scheduler.adopt(kept))
        except MxspecError as error:
            raise MxspecError(f"prompt cache {path}: {error}") from None
        return len(kept.tokens)

    def save_slots(self, folder: Path) -> int:
        """Keep what all slots hold as files in `folder`, in the place of its earlier ones; their number.

        Short texts are left out. Raises MxspecError.
        """
        if self.target.encoder is not None:
            return 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # they hold what users wrote
        written: list[Path] = []
        for tokens, cache_key in self._worker.call(self._scheduler.slots.contents):
            kept = self._worker.call(partial(self._scheduler.beginning, tokens, cache_key))
            if kept is not None and len(tokens) >= WORTH_KEEPING:
                written.append(folder / f"{len(written):04}{KEPT}")
                write_beginning(written[-1], kept, self.bundle, self.model)
        for path in folder.glob(f"*{KEPT}"):
            if path not in written:
                path.unlink(missing_ok=True)
        return len(written)

    def load_slots(self, folder: Path) -> Iterator[str]:
        """Give slots what save_slots() kept, as many as there are; yields a line for each file that is not right."""
        for path in reversed(sorted(folder.glob(f"*{KEPT}"))[: self.target.slots]):  # what was used last is used last
            try:
                self.load(path)
            except MxspecError as error:
                yield str(error)

    # --- scoring ---

    def score(
        self, token_ids: Sequence[int], *, source: Sequence[int] | None = None, model: ModelName | None = None
    ) -> Iterator[Logits]:
        """Yield chunks of logits float32[rows, vocab]; row i (over all chunks) predicts token i + 1.

        `model` is the one that the engine writes with, unless another is named. With a draft that reads hidden states,
        the target reads the text, too.
        Models with encoders need the `source`, and tokens as their decoders read them: those of `decoder_start` first.
        Each score has a session of its own, beside those of the texts that are written and of other scores.
        """
        model = model or self.model
        self.bundle.graph_path(model)  # raises where the bundle has no such model
        ids = self._checked(token_ids, self.bundle.manifest.models[model].context_length)
        if (source is not None) != (self.target.encoder is not None):
            what = "got none, expected what the encoder reads" if source is None else "got one without an encoder"
            raise GenerationError("source", what)
        read = [] if source is None else self._checked(source, self.prompt_capacity)
        idle = self._idle_readers.setdefault(model, [])
        try:
            reader = idle.pop()
        except IndexError:  # another thread may have taken the last
            reader = self._reader_of(model)
        if not reader.session.fits(0, 0, ids):
            idle.append(reader)
            raise ContextLengthError(
                "prompt",
                f"got {len(ids)} tokens, which the {model} reads as more than {reader.session.capacity} tokens "
                "of its own tokenizer, its context length; give a shorter prompt",
            )
        return _score(reader, ids, read, idle)

    def _reader_of(self, model: ModelName) -> Reader | StatesReader:
        session = Session.of(self.bundle, model, 1)
        if session.read_states is None:
            return Reader(session)
        return StatesReader(session, Session.of(self.bundle, self.model, 1))

    # --- from a request to texts ---

    def _texts(self, request: Request, mailbox: Mailbox) -> list[ScheduledText]:
        manifest = self.bundle.manifest
        source, prompt = self._source_and_prompt(request)
        sampling = self._sampling(request)
        ends = frozenset(check_ids(request.stop_token_ids, manifest.tokenizer.vocab_size, "stop_token_ids"))
        eos = ends | frozenset(manifest.tokenizer.eos_token_ids)
        settings = choose_settings(
            request,
            sampling,
            self._drafters,
            manifest.k_max,
            self._measured,
            prompt=prompt,
            source=source,
            eos=ends if request.ignore_eos else eos,
        )
        room = self.target.capacity + 1 - len(prompt)
        ends_by_itself = not request.ignore_eos and request.grammar is None
        limit = min(request.max_new_tokens, room) if ends_by_itself else None

        matchers = self._matchers(request)

        def shaper(matcher: Matcher | None) -> Shaper:
            return Shaper(
                sampling,
                prompt,
                vocab_size=manifest.tokenizer.vocab_size,
                eos=eos,
                min_new_tokens=request.min_new_tokens,
                grammar=matcher,
                rules=manifest.generation,
                limit=limit,
            )

        stream = partial(TextStream, self.tokenizer, prompt, request.stops)
        if request.search is not None:
            if request.beams > self.target.slots:
                expected = f"at most {self.target.slots}, the slots of the engine: each beam needs a slot"
                raise GenerationError("beams", f"got {request.beams}, expected {expected}")
            draft = None if settings.drafter.name == "none" or self._has_other_entries else self.draft
            stops = bool(request.stops)
            forced = len(manifest.tokenizer.decoder_start) - 1 if source and request.decoder_prompt is None else 0
            beams = replace(request.search, counted=forced)
            return [Search(settings, beams, shaper(matchers[0]), stream, mailbox, self.target, draft, stops=stops)]
        return [
            Text(settings, shaper(matcher), stream(), mailbox, self.target.capacity, sample)
            for sample, matcher in enumerate(matchers)
        ]

    @property
    def _has_other_entries(self) -> bool:
        """Whether the draft's cache has other entries than one for each token: then it guesses nothing for searches."""
        return self.draft is not None and (self.draft.translation is not None or self.draft.read_states is not None)

    def _matchers(self, request: Request) -> list[Matcher | None]:
        """A matcher for each sample, all of one grammar that is compiled once."""
        if request.grammar is None:
            return [None] * request.samples
        first = self.trial.compile(request.grammar)
        return [first, *(first.copy() for _ in range(request.samples - 1))]

    def _source_and_prompt(self, request: Request) -> tuple[tuple[int, ...], list[int]]:
        """The source that the encoder reads (empty without an encoder), and the ids that the text continues."""
        read = self._checked(self.prompt_of(request), self.prompt_capacity)
        given = request.decoder_prompt
        if self.target.encoder is None:
            if given is not None:
                raise GenerationError("decoder_prompt", "given, but no model of the bundle has an encoder; give prompt")
            return (), read
        start = list(self.bundle.manifest.tokenizer.decoder_start)
        beginning = self.encode_within(given, rendered=True) if isinstance(given, str) else list(given or ())
        if beginning[: len(start)] != start:
            beginning = start + beginning
        return tuple(read), self._checked(beginning, self.target.capacity, "decoder_prompt")

    def prompt_of(self, request: Request) -> Sequence[int]:
        """The token ids of a request's prompt, or of its messages by the chat template. Raises GenerationError."""
        if request.messages is not None:
            template = self.template_for(request.typed_control_tokens)
            self.check_chat(request.messages)
            text = template.render(
                request.messages,
                tools=request.tools,
                variables=request.template_variables,
                continued=request.continued,
            )
            return self.encode_within(text, rendered=True, template=template)
        assert request.prompt is not None
        return self.encode_within(request.prompt) if isinstance(request.prompt, str) else request.prompt

    def _checked(self, tokens: Sequence[int], limit: int, field: str = "prompt") -> list[int]:
        ids = check_ids(tokens, self.bundle.manifest.tokenizer.vocab_size, field)
        if not 0 < len(ids) <= limit:
            whose = "encoder's context" if field == "prompt" and self.target.encoder is not None else "context"
            kind = ContextLengthError if ids else GenerationError
            raise kind(field, f"got {len(ids)} tokens, expected 1 to {limit}, the {whose} length")
        return ids

    def _sampling(self, request: Request) -> Sampling:
        """The request's sampling parameters, the bundle's defaults where they are not given, and a seed."""
        given = {name: value for name in PARAMETERS if (value := getattr(request, name)) is not None}
        defaults = self.bundle.manifest.sampling.model_dump()
        asked = Sampling(**{"temperature": defaults["temperature"], **given})
        if asked.unused:
            raise GenerationError(
                asked.unused[0],
                "given at temperature 0, which is greedy and takes the likeliest token; "
                "give a temperature above 0, or leave it out",
            )
        if request.beams > 1 and not asked.greedy:
            raise GenerationError(
                "beams",
                f"got {request.beams} at temperature {asked.temperature:g}; a beam search finds the likeliest "
                "texts; ask for temperature 0 with beams",
            )
        if request.beams == 1 and asked.greedy and request.samples > 1:
            name = "n" if request.n > 1 else "best_of"
            raise GenerationError(name, f"got {request.samples} at temperature 0, where all samples are the same")
        return Sampling(**{**defaults, **given}).seeded()


def _draft_of(draft: Session, target: Session, tokenizer: Tokenizer) -> Draft:
    if draft.texts is not None:
        return TextDraft(draft, tokenizer)
    return Draft(draft) if draft.read_states is None else StatesDraft(draft, target)


def _close(worker: Worker, scheduler: Scheduler, costs: Path | None) -> None:
    worker.close()
    write_table(costs, CostTable.of(scheduler.load))


def _score(
    reader: Reader | StatesReader, ids: Sequence[int], source: Sequence[int], idle: list[Reader | StatesReader]
) -> Iterator[Logits]:
    try:
        yield from reader.score(ids, source)
    finally:
        idle.append(reader)


def _answers(handle: Handle, several: bool) -> Answer | list[Answer]:
    return handle.results() if several else handle.result()


__all__ = ["Engine", "QueueFullError"]
