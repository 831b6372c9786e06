"""200 grammars and schemas that were made to hurt, sent to a server: what do others have of it?

    python -m bench serve-grammars smollm2.bundle --record build/records/serve_grammars.json

specserve runs in a process of its own, with 8 slots. One client reads streams of text, and one asks for answers that
keep to small schemas, each a new one: alone at first, then beside clients that send the hurtful ones.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from bench.measurement import measurement
from bench.servers.attackers import CHAT, Answer, Beside, post_all, schema_request
from bench.servers.grammars import Hurtful, hurtful_grammars
from bench.servers.result import BesideTimes, Family, GrammarAttackResult
from mxspec.evaluate.bench.machine import anonymous_bytes
from mxspec.evaluate.bench.options import bundle_argument
from mxspec.evaluate.bench.serve.server import specserve

LONGEST_GAPS = 100


def times(beside: str, found: Beside) -> BesideTimes:
    """What a stream and good requests took."""
    return BesideTimes(
        beside=beside,
        worst_gap_seconds=max(found.gaps),
        trials_gap_seconds=tuple(sorted(found.gaps, reverse=True)[:LONGEST_GAPS]),
        pieces=len(found.gaps),
        good_seconds=tuple(answer.seconds for answer in found.answers),
    )


def wrong_ones(answers: list[Answer]) -> list[str]:
    """Good requests that were not answered with a JSON object, or with a part of one where tokens ran out."""
    wrong = []
    for answer in answers:
        choice = json.loads(answer.body)["choices"][0] if answer.status == 200 else {}
        text = choice.get("message", {}).get("content", "")
        if not text.startswith("{") or (choice["finish_reason"] == "stop" and not isinstance(json.loads(text), dict)):
            wrong.append(f"{answer.status}: {answer.body[:300]!r}")
    return wrong


def families(sent: list[Hurtful], answers: list[Answer]) -> list[Family]:
    """What became of each family of grammars."""
    found = []
    for name in dict.fromkeys(one.family for one in sent):
        own = [answer for one, answer in zip(sent, answers, strict=True) if one.family == name]
        refused, written = (sum(answer.status == status for answer in own) for status in (400, 200))
        slowest = max(answer.seconds for answer in own)
        others = len(own) - refused - written
        found.append(Family(name=name, refused=refused, written=written, others=others, slowest_seconds=slowest))
    return found


@measurement
@bundle_argument
@click.option("--clients", default=8, show_default=True, help="Clients that send hurtful grammars.")
@click.option("--slots", default=8, show_default=True)
@click.option("--tokens", default=32, show_default=True, help="Tokens of a text by a hurtful grammar.")
@click.option("--alone", "alone_seconds", default=10.0, show_default=True, help="Seconds without an attack.")
@click.option("--first", default=None, type=int, help="Send so many grammars alone, for a quick try.")
def main(
    bundle: Path, clients: int, slots: int, tokens: int, alone_seconds: float, first: int | None
) -> GrammarAttackResult:
    """Attack a server with grammars."""
    sent = hurtful_grammars()[:first]
    bodies = [one.body(tokens) for one in sent]
    with specserve(bundle, "--slots", slots) as server:
        alone = Beside(server.address, schema_request)
        with alone.running():
            time.sleep(alone_seconds)
        before = anonymous_bytes(server.process.pid)
        attacked = Beside(server.address, lambda number: schema_request(1000 + number))
        began = time.perf_counter()
        with attacked.running():
            answers = post_all(server.address, CHAT, bodies, clients)
        seconds = time.perf_counter() - began
        memory = before, anonymous_bytes(server.process.pid)
        ends = int(server.process.poll() is not None)
    return GrammarAttackResult(
        bundle=bundle.name,
        slots=slots,
        clients=clients,
        grammars=len(sent),
        seconds=seconds,
        process_ends=ends,
        wrong=(*alone.errors, *attacked.errors, *wrong_ones(alone.answers + attacked.answers)),
        others=tuple(
            f"{one.family}: {answer.status}: {answer.body[:300]!r}"
            for one, answer in zip(sent, answers, strict=True)
            if answer.status not in (200, 400)
        ),
        families=tuple(families(sent, answers)),
        times=(times("nothing", alone), times(f"{len(sent)} hurtful grammars", attacked)),
        anonymous_bytes=memory,
    )
