"""The command `specrun`: its options, and which of its jobs they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mxspec.formats.errors import GenerationError
from mxspec.runtime.cli.option_groups import GroupedCommand, option
from mxspec.runtime.cli.request_options import request_options
from mxspec.runtime.cli.settings import request_for, request_settings
from mxspec.runtime.commands.invocation import Invocation
from mxspec.runtime.commands.one_answer import answer_once
from mxspec.runtime.commands.prompt import read_prompt
from mxspec.runtime.commands.trace_file import check_trace_path
from mxspec.runtime.settings import SPEED

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
@option(PROMPT, "--task", metavar="NAME", help="Put the words that the recipe has for this task before the prompt.")
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
    help="With --json or --prompts: log-probability of each token, and of the N likeliest tokens in its place.",
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
def specrun(**given: Any) -> int:
    """Answer PROMPT, or continue it, with the models of BUNDLE.

    A bundle with a chat template answers; --raw, and a bundle without one, continues. A bundle with encoders answers
    what it reads: a translation, a summary. The prompt is an argument, a file (--prompt-file), or standard input where
    it is "-" or left out; one newline at the end of a file and of standard input is not part of it. The text is written
    as it is made; on a terminal, tokens that the draft guessed are coloured, and Ctrl-C ends the text.

    \b
    specrun BUNDLE 'Once upon a time'
    specrun --chat BUNDLE
    specrun BUNDLE --prompts questions.jsonl --out answers.jsonl
    """
    call = Invocation.of(given)
    if call.trace is not None:
        check_trace_path(call.trace)
    settings = request_settings(call.options)
    if call.compared:
        return _compare(call, settings)
    prompt = "" if call.talks or call.answers_file else read_prompt(call.prompt, call.prompt_file)
    with _open(call) as engine:
        if call.answers_file:
            return _answer_file(engine, call, settings)
        if call.chat and engine.template is None:
            raise GenerationError(
                "--chat", f"bundle {call.bundle} has no chat template; without --chat it continues a prompt"
            )
        if call.talks:
            from mxspec.runtime.commands.chat_session import ChatSession

            return ChatSession(engine, settings, call.system).run()
        return _answer(engine, call, prompt, settings)


def _compare(call: Invocation, settings: Mapping[str, Any]) -> int:
    from mxspec.runtime.commands.compare import compare

    return compare(
        call.bundle,
        read_prompt(call.prompt, call.prompt_file),
        settings,
        system=call.system,
        raw=call.raw,
        task=call.task,
        threads=call.threads,
        json_output=call.json_output,
        picture=call.picture,
    )


def _answer_file(engine: Engine, call: Invocation, settings: Mapping[str, Any]) -> int:
    from mxspec.runtime.commands.batch import run_batch
    from mxspec.runtime.commands.batch_lines import Defaults

    assert call.prompts is not None
    assert call.out is not None
    defaults = Defaults(settings, call.system, call.raw, call.task)
    return run_batch(engine, call.prompts, call.out, defaults, json_output=call.json_output)


def _answer(engine: Engine, call: Invocation, prompt: str, settings: dict[str, Any]) -> int:
    """Answer one prompt, from the file of an earlier run if there is one, else writing that file."""
    if call.trace is not None:
        settings = settings | {"trace": True}
    request = request_for(engine, prompt, settings, system=call.system, raw=call.raw, task=call.task)
    if call.prompt_cache is not None and call.prompt_cache.exists():
        engine.load(call.prompt_cache)
    code = answer_once(engine, request, json_output=call.json_output, trace=call.trace)
    if call.prompt_cache is not None and not call.prompt_cache.exists():
        engine.save(engine.prompt_of(request), call.prompt_cache)
    return code


def _open(call: Invocation) -> Engine:
    """The engine, imported late: --help and mistakes need no ONNX Runtime."""
    from mxspec.runtime.engine import SLOTS, Engine

    return Engine(call.bundle, slots=SLOTS if call.slots is None else call.slots, threads=call.threads)
