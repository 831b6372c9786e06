"""A trace as one page to look at: it needs no network, and nothing of the trace can become markup or code.

The answer with each token's origin in colour, the time of its rounds beside that of plain decoding, and every round as
in figure 1 of Leviathan et al. (2023): what was kept, what was rejected, and what the target wrote instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mxspec.runtime.cli.plain_console import shown
from mxspec.runtime.events import TARGET
from mxspec.runtime.trace.timeline import timeline

WHY = {
    "prompt": "after the prompt",
    "fixed": "fixed",
    "cost": "by cost",
    "room": "clamped by room",
    "grammar": "forced by the grammar",
    "drafter": "the drafter stopped",
    "reading": "the draft was reading",
}
WHAT = {
    "accepted": "kept",
    "rejected": "rejected",
    "discarded": "discarded unread",
    "replacement": "in place of the rejected one",
    "bonus": "after a round that was kept whole",
    "plain": "nothing was guessed",
}

Object = Mapping[str, Any]


def render_page(objects: Sequence[Object]) -> str:
    """The page of a trace: its header, rounds and ends, as `Collector` makes them."""
    header, *rest = objects
    folder = Path(__file__).parent
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)
    environment.filters |= {"shown": shown, "named": named, "drawn": drawn, "ms": milliseconds, "percent": percent}
    samples = [_sample(header, rest, sample) for sample in sorted({one["sample"] for one in rest})]
    return environment.get_template("page.html").render(
        header=header,
        samples=samples,
        origins=_slots(rest),
        why=WHY,
        what=WHAT,
        css=(folder / "page.css").read_text(encoding="utf-8"),
        script=(folder / "page.js").read_text(encoding="utf-8"),
    )


def _slots(objects: Sequence[Object]) -> dict[str, int]:
    """The number of each origin's colour; the target's is 0."""
    names = dict.fromkeys(guess["origin"] for one in objects for guess in one.get("drafted", ()))
    return {TARGET: 0} | {name: 1 + i % 6 for i, name in enumerate(names)}


def _sample(header: Object, objects: Sequence[Object], sample: int) -> dict[str, Any]:
    own = [one for one in objects if one["sample"] == sample]
    rounds = [one for one in own if "round" in one]
    end = next((one for one in own if "finished" in one), None)
    guesses = [(place, guess) for one in rounds for place, guess in enumerate(one["drafted"])]
    accepted = Counter(place for place, guess in guesses if guess["decision"] == "accepted")
    evaluated = Counter(place for place, guess in guesses if guess["decision"] != "discarded")
    kept = Counter(guess["origin"] for _, guess in guesses if guess["decision"] == "accepted")
    own_tokens = sum(one["next"] is not None for one in rounds)
    return {
        "number": sample + 1,
        "rounds": rounds,
        "end": end,
        "tokens": own_tokens + kept.total(),
        "written": {TARGET: own_tokens, **kept},
        "accepted": accepted.total(),
        "evaluated": evaluated.total(),
        "positions": [(accepted[place], evaluated[place]) for place in sorted(evaluated)],
        "sizes": sorted(Counter(len(one["drafted"]) for one in rounds[1:]).items()),
        "time": timeline(rounds, header["plain_step_s"]),
    }


def named(text: str) -> str:
    """A token's text as a word in a sentence: white space has names."""
    if not text:
        return "part of a character"
    return text if text.strip() else " ".join(_SPACES.get(character, "space") for character in text)


def drawn(text: str) -> str:
    """A token's text on one line: white space has signs."""
    if not text:
        return "⋯"
    signs = text.replace("\n", "↵").replace("\t", "⇥")
    return shown(signs if text.strip() else signs.replace(" ", "␣"))


_SPACES = {"\n": "newline", "\t": "tab"}


def milliseconds(seconds: float) -> str:
    """A time in milliseconds, with about three digits."""
    value = seconds * 1e3
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def percent(part: float, whole: float = 1.0) -> str:
    """A share in whole percents; a dash where `whole` is 0."""
    return f"{100 * part / whole:.0f} %" if whole else "–"
