"""The command `specrun`: its options, and which of its jobs they ask for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mxspec.formats.errors import GenerationError
from mxspec.runtime.cli.option_groups import GroupedCommand, option
from mxspec.runtime.cli.request_options import SPEED, request_options
from mxspec.runtime.cli.settings import request_for, request_settings
from mxspec.runtime.commands.one_answer import answer_once
from mxspec.runtime.commands.prompt import read_prompt
from mxspec.runtime.commands.trace_file import check_trace_path

if TYPE_CHECKING:
    from mxspec.runtime.engine import Engine

PROMPT, OUTPUT, BATCH = "Prompt", "Output", "Batch jobs"
FILE = click.Path(path_type=Path)


@click.command(cls=GroupedCommand)
@click.version_option(package_name="mxspec")
@click.argument("bundle", type=FILE)
@click.argument("prompt", required=False)
@option(PROMPT, "--prompt-file", type=FILE, metavar="FILE", help="Read the prompt from a UTF-8 file.")
@option(
    PROMPT,
    "--chat",
    is_flag=True,
    help="Chat in many turns (/help lists the commands); with a prompt, a chat of one turn.",
)
@option(PROMPT, "--system", metavar="TEXT", help="System message of the chat.")
@option(PROMPT, "--task", metavar="NAME", help="Put what the bundle's recipe has for this task before the prompt.")
@option(PROMPT, "--raw", is_flag=True, help="Continue the prompt as it is, though the bundle has a chat template.")
@option(
    PROMPT,
    "--prompt-cache",
    type=FILE,
    metavar="FILE",
    help="Keep the prompt as it was read in FILE, which the first run writes: later runs with the same beginning read "
    "only what follows.",
)
@request_options
@option(SPEED, "--slots", type=int, help="Number of texts to write at the same time.  [default: 8]")
@option(SPEED, "--threads", type=int, help="Number of threads.  [default: all cores]")
@option(OUTPUT, "--json", "json_output", is_flag=True, help="Print one JSON object instead of the text.")
@option(
    OUTPUT,
    "--logprobs",
    type=int,
    help="With --json: log-probability of each token, and of the N likeliest in its place.",
)
@option(
    OUTPUT,
    "--logprobs-of",
    type=click.Choice(["raw", "shaped"]),
    help="Log-probabilities of the model itself (raw), or after the sampling settings (shaped).  [default: raw]",
)
@option(
    OUTPUT, "--trace", type=FILE, metavar="FILE", help="Write a trace of all rounds: FILE.jsonl, or a page FILE.html."
)
@option(
    OUTPUT,
    "--compare",
    "compared",
    is_flag=True,
    help="Show what fp16, the packed target and speculation write, side by side.",
)
@option(OUTPUT, "--picture", type=FILE, metavar="FILE", help="With --compare: save the comparison as FILE.svg.")
@option(
    BATCH,
    "--prompts",
    type=FILE,
    metavar="FILE",
    help="Answer each line of a JSONL file; a line has a prompt or messages, and may have settings and a key.",
)
@option(
    BATCH,
    "--out",
    type=FILE,
    metavar="FILE",
    help="Write the answers of --prompts, one line each; a job that was killed is resumed.",
)
def specrun(
    bundle: Path,
    prompt: str | None,
    prompt_file: Path | None,
    chat: bool,
    system: str | None,
    raw: bool,
    task: str | None,
    prompt_cache: Path | None,
    slots: int | None,
    threads: int | None,
    json_output: bool,
    prompts: Path | None,
    out: Path | None,
    trace: Path | None,
    compared: bool,
    picture: Path | None,
    **options: Any,
) -> int:
    """Answer PROMPT, or continue it, with the models of BUNDLE.

    A bundle with a chat template answers; --raw, and a bundle without one, continues. A bundle with encoders answers
    what it reads: a translation, a summary. The prompt is an argument, a
    file (--prompt-file), or standard input where it is "-" or left out; one newline at the end of a file and of
    standard input is not part of it. The text is written as it is made; on a terminal, tokens that the draft guessed
    are coloured, and Ctrl-C ends the text.

    \b
    specrun BUNDLE 'Once upon a time'
    specrun --chat BUNDLE
    specrun BUNDLE --prompts questions.jsonl --out answers.jsonl
    """
    talk = chat and prompt is None and prompt_file is None and _asked_at_terminal()
    _refuse(
        {
            "--raw": (raw and chat, "--chat, which needs the chat template"),
            "--system": (raw and system is not None, "--raw, which leaves the chat template out"),
            "--out": (out is not None and prompts is None, "no --prompts"),
            "--prompts": (prompts is not None and out is None, "no --out"),
            "PROMPT": (prompts is not None and prompt is not None, "--prompts, which holds them all"),
            "--prompt-file": (prompts is not None and prompt_file is not None, "--prompts, which holds them all"),
            "--chat": (prompts is not None and chat, "--prompts, whose lines are answered one by one"),
            "--json": (talk and json_output, "a chat of many turns; /save writes it to a file"),
            "--task": (talk and task is not None, "a chat of many turns"),
            "--n": (talk and options["n"] is not None, "a chat of many turns, which goes on from one answer"),
            "--best-of": (
                options["best_of"] is not None and (talk or trace is not None),
                "--trace, which shows all that is written"
                if trace
                else "a chat of many turns, which shows what it writes",
            ),
            "--trace": (trace is not None and (talk or prompts is not None), "many answers, where it is of one"),
            "--compare": (
                compared
                and (
                    talk
                    or prompts is not None
                    or trace is not None
                    or any(options[name] for name in ("n", "best_of", "beams"))
                ),
                "what is not one answer to one prompt, written token by token",
            ),
            "--prompt-cache": (
                prompt_cache is not None and (talk or prompts is not None or compared),
                "what is not one answer to one prompt",
            ),
            "--picture": (picture is not None and not compared, "no --compare, whose picture it is"),
            "--slots": (compared and slots is not None, "--compare, which writes one text at a time"),
            "--logprobs": (
                options["logprobs"] is not None and not (json_output or prompts is not None),
                "no --json, which would print them",
            ),
        }
    )
    if trace is not None:
        check_trace_path(trace)
    settings = request_settings(options)
    text = "" if talk or prompts is not None else read_prompt(prompt, prompt_file)
    if compared:
        from mxspec.runtime.commands.compare import compare

        return compare(
            bundle,
            text,
            settings,
            system=system,
            raw=raw,
            task=task,
            threads=threads,
            json_output=json_output,
            picture=picture,
        )
    with _open(bundle, slots, threads) as engine:
        if prompts is not None and out is not None:
            from mxspec.runtime.commands.batch import run_batch
            from mxspec.runtime.commands.batch_lines import Defaults

            return run_batch(engine, prompts, out, Defaults(settings, system, raw, task), json_output=json_output)
        if chat and engine.template is None:
            raise GenerationError(f"--chat: bundle {bundle} has no chat template; without --chat it continues a prompt")
        if talk:
            from mxspec.runtime.commands.chat_session import ChatSession

            return ChatSession(engine, settings, system).run()
        if trace is not None:
            settings["trace"] = True
        request = request_for(engine, text, settings, system=system, raw=raw, task=task)
        if prompt_cache is not None and prompt_cache.exists():
            engine.load(prompt_cache)
        code = answer_once(engine, request, json_output=json_output, trace=trace)
        if prompt_cache is not None and not prompt_cache.exists():
            engine.save(engine.prompt_of(request), prompt_cache)
        return code


def _refuse(mistakes: dict[str, tuple[bool, str]]) -> None:
    """Raise GenerationError for the first option that was given where it does nothing."""
    for name, (mistaken, with_what) in mistakes.items():
        if mistaken:
            raise GenerationError(f"{name}: given with {with_what}")


def _asked_at_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _open(bundle: Path, slots: int | None, threads: int | None) -> Engine:
    """The engine, imported late: --help and mistakes need no ONNX Runtime."""
    from mxspec.runtime.engine import SLOTS, Engine

    return Engine(bundle, slots=SLOTS if slots is None else slots, threads=threads)
