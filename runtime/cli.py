"""`specrun`: generate text from a bundle."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mxspec.formats.errors import GenerationError
from mxspec.runtime.command import EXIT_INTERRUPTED, Command, print_json, read_text
from mxspec.runtime.events import Event, Finished, Statistics, Token

if TYPE_CHECKING:
    from mxspec.runtime.request import DrafterName, K

DRAFTED_COLOUR = "green"


def parse_k(ctx: click.Context, param: click.Parameter, value: str | None) -> K | None:
    """A number of tokens, or auto."""
    if value is None:
        return None
    if value == "auto":
        return "auto"
    if not value.isdecimal():
        raise click.BadParameter(f"got {value!r}, expected auto, or a number of tokens (0: plain decoding)")
    return int(value)


@click.command(cls=Command)
@click.version_option(package_name="mxspec")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("prompt", required=False)
@click.option("--prompt-file", type=click.Path(path_type=Path), help="Read the prompt from a UTF-8 file.")
@click.option("--max-new-tokens", default=128, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--k",
    callback=parse_k,
    metavar="INTEGER|auto",
    help="Tokens to draft a round; auto: by what it costs.  [default: auto if greedy, else 4]",
)
@click.option("--drafter", type=click.Choice(["model", "none"]), default="model", show_default=True)
@click.option("--temperature", default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", default=0, show_default=True, help="0 is off.")
@click.option("--top-p", default=1.0, show_default=True, help="1 is off.")
@click.option("--seed", default=0, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="Threads to use.  [default: all cores]")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object instead of the text.")
def main(
    bundle: Path,
    prompt: str | None,
    prompt_file: Path | None,
    max_new_tokens: int,
    k: K | None,
    drafter: DrafterName,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    threads: int | None,
    json_output: bool,
) -> int:
    """Continue PROMPT with the models of BUNDLE.

    The prompt is an argument, a file (--prompt-file), or standard input where it is "-" or left out. The text is
    written as it is made; on a terminal, tokens that the draft guessed are coloured.
    """
    from mxspec.runtime.engine import Engine  # late: --help and mistakes need no ONNX Runtime, and Ctrl-C is heard

    text = read_prompt(prompt, prompt_file)
    engine = Engine(bundle, threads=threads)
    k = 0 if drafter == "none" else engine.default_k(temperature) if k is None else k
    generation = engine.generate(
        text,
        max_new_tokens=max_new_tokens,
        k=k,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        drafter=drafter,
    )
    answer = Answer()
    terminal = on_terminal() and not json_output
    if terminal:
        click.secho(text, nl=False, bold=True)
    try:
        for event in generation:
            answer.add(event)
            if not json_output:
                write(event, coloured=terminal)
        exit_code = 0
    except KeyboardInterrupt:
        exit_code = EXIT_INTERRUPTED
    if json_output:
        print_json(answer.as_json(generation.statistics, k))
    else:
        click.echo()
        click.secho(closing_line(generation.statistics, k), err=not terminal, dim=True)
    return exit_code


def on_terminal() -> bool:
    """Whether somebody watches: then the prompt stands before the text, and colours are worth something."""
    return sys.stdout.isatty()


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """The prompt from where it was given; raises GenerationError where it is empty or given twice."""
    if prompt is not None and prompt_file is not None:
        raise GenerationError("prompt: got both PROMPT and --prompt-file, expected one of them")
    if prompt_file is not None:
        prompt = read_text(prompt_file, "--prompt-file")
    elif prompt is None or prompt == "-":
        prompt = sys.stdin.read()
    if not prompt:
        raise GenerationError("prompt: got an empty text, expected at least one character")
    return prompt


def write(event: Event, *, coloured: bool) -> None:
    """Write the text of an event as it stands, accepted draft tokens in green if `coloured`."""
    if isinstance(event, Token) and event.text:
        click.echo(click.style(event.text, fg=DRAFTED_COLOUR) if coloured and event.drafted else event.text, nl=False)
    elif isinstance(event, Finished) and event.tail:
        click.echo(event.tail, nl=False)


def closing_line(statistics: Statistics, k: K) -> str:
    """Time to first token, speed, acceptance, tokens a round, rounds."""
    parts = [f"TTFT {statistics.prefill_seconds * 1e3:.0f} ms"]
    if statistics.decode_tokens_per_second is not None:
        parts.append(f"decode {statistics.decode_tokens_per_second:.1f} tok/s")
    if statistics.acceptance is not None:
        parts.append(f"acceptance {statistics.acceptance:.3f}")
    if statistics.tokens_per_round is not None:
        parts.append(f"{statistics.tokens_per_round:.2f} tokens/round")
    return " · ".join([*parts, f"{statistics.emitted} tokens in {statistics.rounds} rounds", f"K = {k}"])


@dataclass(slots=True)
class Answer:
    """What has been generated so far, whole."""

    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    def add(self, event: Event) -> None:
        if isinstance(event, Token):
            self.token_ids.append(event.id)
            self.pieces.append(event.text)
        elif isinstance(event, Finished):
            self.pieces.append(event.tail)

    def as_json(self, statistics: Statistics, k: K) -> dict[str, Any]:
        """The one object that --json prints; seconds and tokens a second as in Statistics."""
        return {
            "text": "".join(self.pieces),
            "token_ids": self.token_ids,
            "k": k,
            "rounds": statistics.rounds,
            "drafted": statistics.drafted,
            "evaluated": statistics.evaluated,
            "accepted": statistics.accepted,
            "bonus": statistics.bonus,
            "prefill_s": statistics.prefill_seconds,
            "decode_s": statistics.decode_seconds,
            "decode_tok_per_s": statistics.decode_tokens_per_second,
        }


if __name__ == "__main__":
    main()
