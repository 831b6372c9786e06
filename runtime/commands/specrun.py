"""The command `specrun`: its options, and which of its jobs they ask for."""

from __future__ import annotations

import sys
from collections.abc import Set
from pathlib import Path
from typing import Any

import click

from mxspec.formats.errors import GenerationError
from mxspec.runtime.cli.option_groups import GroupedCommand, names_given, option
from mxspec.runtime.cli.output import check_path
from mxspec.runtime.cli.request_options import request_options, setting_option
from mxspec.runtime.cli.settings import Defaults, request_settings
from mxspec.runtime.commands.answer import answer_once
from mxspec.runtime.commands.prompt import read_prompt
from mxspec.runtime.settings import OUTPUT, SPEED

PROMPT, BATCH = "Prompt", "Batch jobs"
FILE = click.Path(path_type=Path)
TALK = "a chat of many turns"
WITHOUT_EFFECT = {  # what does nothing beside an option, or in such a chat
    TALK: ("--json", "--task", "--n", "--best-of", "--trace", "--compare", "--prompt-cache"),
    "--prompts": ("PROMPT", "--prompt-file", "--chat", "--trace", "--compare", "--prompt-cache"),
    "--compare": ("--trace", "--n", "--best-of", "--beams", "--prompt-cache", "--slots"),
    "--trace": ("--best-of",),
    "--chat": ("--raw",),
    "--raw": ("--system",),
}
NEEDED = {  # an option does nothing without one of these
    "--prompts": ("--out",),
    "--out": ("--prompts",),
    "--picture": ("--compare",),
    "--logprobs": ("--json", "--prompts"),
    "--logprobs-of": ("--logprobs", "--best-of"),
}


def refuse_without_effect(given: Set[str]) -> None:
    """Raise GenerationError for an option that does nothing beside the others."""
    for name, needed in NEEDED.items():
        if name in given and not given & set(needed):
            raise GenerationError(name, f"given without {' or '.join(needed)}, where it does nothing")
    for beside, names in WITHOUT_EFFECT.items():
        for name in names:
            if {beside, name} <= given:
                raise GenerationError(name, f"given with {beside}, where it does nothing")


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
@setting_option("logprobs")
@setting_option("logprobs_of")
@option(
    OUTPUT, "--trace", type=FILE, metavar="FILE", help="Write a trace of all rounds: FILE.jsonl, or a page FILE.html."
)
@option(
    OUTPUT,
    "--compare",
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
    task: str | None,
    raw: bool,
    prompt_cache: Path | None,
    slots: int | None,
    threads: int | None,
    json_output: bool,
    trace: Path | None,
    compare: bool,
    picture: Path | None,
    prompts: Path | None,
    out: Path | None,
    **options: Any,
) -> int:
    """Answer PROMPT, or continue it, with the models of BUNDLE.

    A bundle with a chat template answers; --raw, and a bundle without one, continues. A bundle with encoders answers
    what it reads: a translation, a summary. The prompt is an argument, a file (--prompt-file), or standard input where
    it is "-" or left out; text that is piped beside a prompt follows it, after an empty line. One newline at the end of
    a file and of standard input is not part of it. The text is written as it is made; on a terminal, tokens that the
    draft guessed are coloured, and Ctrl-C ends the text.

    \b
    specrun BUNDLE 'Once upon a time'
    specrun --chat BUNDLE
    specrun BUNDLE --prompts questions.jsonl --out answers.jsonl
    """
    given = names_given()
    talks = chat and not given & {"PROMPT", "--prompt-file"} and sys.stdin is not None and sys.stdin.isatty()
    refuse_without_effect(given | ({TALK} if talks else set()))
    if trace is not None:
        check_path("--trace", trace, ".jsonl", ".html")
    if picture is not None:
        check_path("--picture", picture, ".svg")
    defaults = Defaults(request_settings(options), system, raw, task)
    text = "" if talks or prompts is not None else read_prompt(prompt, prompt_file)
    if compare:
        from mxspec.runtime.commands.compare import compare as compare_columns

        return compare_columns(bundle, text, defaults, threads=threads, json_output=json_output, picture=picture)
    from mxspec.runtime.engine import SLOTS, Engine  # late: --help and mistakes need no ONNX Runtime

    with Engine(bundle, slots=SLOTS if slots is None else slots, threads=threads) as engine:
        if prompts is not None and out is not None:
            from mxspec.runtime.commands.batch import run_batch

            return run_batch(engine, prompts, out, defaults, json_output=json_output)
        if chat and engine.template is None:
            raise GenerationError(
                "--chat", f"bundle {bundle} has no chat template; without --chat it continues a prompt"
            )
        if talks:
            from mxspec.runtime.commands.chat_session import ChatSession

            return ChatSession(engine, defaults).run()
        request = defaults.request(engine, text, trace=trace is not None)
        if prompt_cache is not None and prompt_cache.exists():
            engine.load(prompt_cache)
        code = answer_once(engine, request, json_output=json_output, trace=trace)
        if prompt_cache is not None and not prompt_cache.exists():
            engine.save(engine.prompt_of(request), prompt_cache)
        return code
