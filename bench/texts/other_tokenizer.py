"""What a draft with another tokenizer guesses and reads, by the way in which its tokens become the target's.

    python -m bench other-tokenizer TLI.bundle TEXT.bundle --text build/held_out.py --record build/records/tokens.json

The bundles are of one pair, compiled with --draft-tokens tli and text. Nothing is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bench.measurement import measurement
from bench.results import OtherTokensResult, OtherTokensRow
from mxspec.evaluate.bench.prompts import prompts_of
from mxspec.formats.errors import MxspecError
from mxspec.runtime.engine import Engine
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.slots import Slot
from mxspec.runtime.sampling.shape import Logits

PROMPT = 96  # tokens


class Counted:
    """Counts the calls of an engine's draft, its own tokens that it reads, and those of them that it reads again.

    Again: it has written and read them, and they are what the text says, but no token of the target ends with them.
    """

    def __init__(self, engine: Engine) -> None:
        if engine.draft is None or engine.draft.translation is None:
            raise MxspecError(f"bundle {engine.bundle.path}: expected a draft with another tokenizer")
        self.calls = self.tokens = self.again = 0
        self._own: list[int] = []  # that the draft has read of what it wrote in a round, after so many tokens
        self._after = 0
        self._run, self._entries = engine.draft.run_head, engine.draft.translation.entries
        engine.draft.run_head = self._run_head  # type: ignore[method-assign]
        draft: Any = engine.drafters["model"].draft  # type: ignore[attr-defined]
        if engine.draft.texts is not None:
            self._draft, self._rewind, self._keep, self._write = draft, draft.rewind, draft.keep, draft.write
            draft.rewind, draft.keep, draft.write = self._count_again, self._note_place, self._note_own

    def begin(self) -> None:
        """Another text begins."""
        self._own = []

    def _run_head(self, parts: Sequence[Part]) -> Logits:
        self.calls += 1
        for part in parts:
            read = [] if part.written else part.tokens
            self.tokens += 1 if part.written else self.needed(part.slot, part.past, read)
        return self._run(parts)

    def needed(self, slot: int, past: int, tokens: Sequence[int]) -> int:
        """Number of its own tokens that the draft reads for tokens of a slot."""
        return self._entries(slot, past, tokens) - self._entries(slot, past, [])

    def _note_own(self, written: Sequence[tuple[Slot, Sequence[int]]]) -> Logits:
        self._own = list(written[0][1])
        logits: Logits = self._write(written)
        return logits

    def _note_place(self, slot: Slot, ends: Sequence[int | None]) -> None:
        self._after = slot.draft_length
        self._keep(slot, ends)

    def _count_again(self, slot: Slot) -> None:
        self._rewind(slot)
        if not self._own:
            return
        text, true = b"".join(map(self._draft.continuation.bytes_of, slot.tokens[self._after :])), 0
        for own in self._own:
            if not text.startswith(self._draft.texts[own]):
                break
            text, true = text.removeprefix(self._draft.texts[own]), true + 1
        kept = self._entries(slot.index, slot.draft_length, []) - self._entries(slot.index, self._after, [])
        self.again += true - kept
        self._own = []


def measure(path: Path, text: str, prompts: int, tokens: int, k: int) -> list[OtherTokensRow]:
    """A row for greedy text, and one for sampled text by sample-and-match."""
    rows = []
    with Engine(path, slots=1) as engine:
        counted = Counted(engine)
        for temperature in (0.0, 1.0):
            how: dict[str, Any] = {"temperature": temperature, "max_new_tokens": tokens, "ignore_eos": True, "k": k}
            if temperature:
                how |= {"verifier": "match", "seed": 1}
            counted.calls = counted.tokens = counted.again = 0
            of_prompts, found = 0, []
            for number, prompt in enumerate(prompts_of(engine.encode(text), prompts, PROMPT)):
                counted.begin()
                answer = engine.generate(prompt, cache_key=f"{temperature} {number}", **how).result()
                of_prompts += counted.needed(0, 0, prompt)
                found.append(answer.statistics)
            emitted, rounds = (sum(getattr(one, name) for one in found) for name in ("emitted", "rounds"))
            rows.append(
                OtherTokensRow(
                    bundle=path.name,
                    temperature=temperature,
                    tokens_a_round=emitted / rounds,
                    acceptance=sum(one.accepted for one in found) / max(sum(one.evaluated for one in found), 1),
                    calls_a_round=counted.calls / rounds,
                    read_a_token=(counted.tokens - of_prompts) / emitted,
                    again_a_token=counted.again / emitted,
                )
            )
    return rows


@measurement
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--text", type=click.Path(path_type=Path, exists=True), required=True, help="Where prompts come from.")
@click.option("--prompts", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--tokens", type=click.IntRange(min=2), default=64, show_default=True, help="Tokens of an answer.")
@click.option("-k", type=click.IntRange(min=1), default=4, show_default=True, help="Tokens to draft in a round.")
def main(bundles: tuple[Path, ...], text: Path, prompts: int, tokens: int, k: int) -> OtherTokensResult:
    """Write answers with the drafts of BUNDLES."""
    read = text.read_text(encoding="utf-8")
    rows = [row for path in bundles for row in measure(path, read, prompts, tokens, k)]
    return OtherTokensResult(k=k, prompts=prompts, tokens=tokens, rows=tuple(rows))
