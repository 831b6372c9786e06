"""One answer: what goes where, that every option reaches the text, and mistakes in one line with exit code 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mxspec import Engine, Grammar, Token
from mxspec.runtime.cli.settings import Defaults
from mxspec.runtime.commands.batch_lines import request_of
from mxspec.runtime.commands.specrun import specrun

HOW = ["k", "drafter", "verifier", "proposal", "lossless"]
COUNTS = ["beams", "steps", "rounds", "drafted", "evaluated", "accepted", "bonus"]
SPLIT = ["origins", "evaluated_by_position", "accepted_by_position", "experts_a_step", "rounds_by_k"]
SECONDS = ["waiting_s", "prefill_s", "encode_s", "decode_s", "draft_s", "target_s", "rest_s"]
SPEED = ["decode_tok_per_s", "timings"]
KEYS = [
    "text",
    "token_ids",
    "finish_reason",
    "prompt_tokens",
    "reused_tokens",
    "reread_tokens",
    "seed",
    *HOW,
    *COUNTS,
    *SPLIT,
    *SECONDS,
    *SPEED,
]
SCHEMA = '{"type": "boolean"}'


@pytest.fixture(scope="module")
def engine(chat_bundle: str) -> Engine:
    return Engine(chat_bundle)


def ids_of(run: Any, *arguments: str, **settings: Any) -> list[int]:
    result: list[int] = json.loads(run(*arguments, "--json", **settings).stdout)["token_ids"]
    return result


def test_the_text_goes_to_standard_output_and_the_closing_line_to_standard_error(bundle: str, run: Any) -> None:
    result = run(bundle, "hello", "--max-new-tokens", "20", "--k", "3")
    assert result.exit_code == 0
    engine = Engine(bundle)
    ids = [event.id for event in engine.generate("hello", max_new_tokens=20, k=3) if isinstance(event, Token)]
    assert result.stdout == engine.tokenizer.decode(ids) + "\n"
    for word in ("TTFT", "tok/s", "acceptance", "tokens/round", "20 tokens", "rounds", "5 prompt tokens", "K = 3"):
        assert word in result.stderr
    assert result.stderr.endswith("ended by max_new_tokens\n")
    assert result.stderr.count("\n") == 1
    assert "\x1b" not in result.output


def test_json_is_one_object_with_the_keys_that_were_promised(bundle: str, run: Any) -> None:
    result = run(bundle, "hello", "--max-new-tokens", "30", "--k", "4", "--json")
    report = json.loads(result.stdout)
    assert list(report) == KEYS
    assert result.stderr == ""
    assert len(report["token_ids"]) == 30 == report["accepted"] + report["rounds"]
    assert 0 < report["accepted"] <= report["evaluated"] <= report["drafted"]
    assert (report["k"], report["finish_reason"], report["seed"]) == (4, "max_new_tokens", None)
    assert (report["prompt_tokens"], report["reused_tokens"]) == (5, 0)
    assert report["decode_tok_per_s"] == pytest.approx(29 / report["decode_s"])
    assert report["text"] == Engine(bundle).tokenizer.decode(report["token_ids"])


@pytest.mark.parametrize(("options", "k"), [([], "auto"), (["--k", "auto"], "auto"), (["--temperature", "1"], 4)])
def test_k_is_chosen_by_cost_where_the_text_does_not_depend_on_it(
    bundle: str, run: Any, options: list[str], k: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # costs are not known yet, so that drafting is tried
    report = json.loads(run(bundle, "hello", "--max-new-tokens", "30", "--json", *options).stdout)
    assert report["k"] == k
    assert report["drafted"] > 0
    assert f"K = {k} ·" in run(bundle, "hello", *options).stderr


@pytest.mark.parametrize("options", [["--k", "0"], ["--drafter", "none"], ["--drafter", "none", "--k", "0"]])
def test_plain_decoding_writes_the_same_text(bundle: str, run: Any, options: list[str]) -> None:
    plain, speculative = (
        json.loads(run(bundle, "hello", "--max-new-tokens", "30", "--json", *more).stdout)
        for more in (options, ["--k", "5"])
    )
    assert plain["token_ids"] == speculative["token_ids"]
    assert (plain["k"], plain["drafted"], plain["accepted"], plain["rounds"]) == (0, 0, 0, 30)


def test_the_prompt_comes_from_an_argument_a_file_or_standard_input(bundle: str, run: Any, tmp_path: Path) -> None:
    """Of two newlines at the end, the last is not part of the prompt; the one before it is."""
    file = tmp_path / "prompt.txt"
    file.write_text("naïve €\n", encoding="utf-8")
    options = ["--max-new-tokens", "10"]
    expected = ids_of(run, bundle, "naïve €", *options)
    for stdin in ("naïve €", "naïve €\n", "naïve €\r\n", b"na\xc3\xafve \xe2\x82\xac\n"):
        assert ids_of(run, bundle, *options, stdin=stdin) == expected
    assert ids_of(run, bundle, "-", *options, stdin="naïve €") == expected
    assert ids_of(run, bundle, "--prompt-file", str(file), *options) == expected
    joined = ids_of(run, bundle, "naïve\n\n€", *options)
    assert ids_of(run, bundle, "naïve", *options, stdin="€\n") == joined
    (tmp_path / "first.txt").write_text("naïve\n", encoding="utf-8")
    assert ids_of(run, bundle, "--prompt-file", str(tmp_path / "first.txt"), *options, stdin="€") == joined
    reports = [
        json.loads(run(bundle, *prompt, *options, "--json", stdin=stdin).stdout)
        for prompt, stdin in ((["naïve €\n"], None), ([], "naïve €\n\n"))
    ]
    assert [report["prompt_tokens"] for report in reports] == [11, 11]
    assert reports[0]["token_ids"] == reports[1]["token_ids"] != expected


def test_a_text_ends_where_the_model_or_the_context_does(bundle: str, engine: Engine) -> None:
    assert Defaults({}).request(engine, "hello").max_new_tokens == engine.target.capacity
    assert Defaults({"max_new_tokens": 5}).request(engine, "hello").max_new_tokens == 5
    assert request_of(engine, {"prompt": [1]}, Defaults({})).max_new_tokens == engine.target.capacity


OPTIONS = {
    "--temperature 1.5 --seed 3": {"temperature": 1.5, "seed": 3},
    "--temperature 2 --seed 3 --top-p 0.5": {"temperature": 2, "seed": 3, "top_p": 0.5},
    "--temperature 2 --seed 3 --k 1": {"temperature": 2, "seed": 3, "k": 1},
    "--repetition-penalty 5": {"repetition_penalty": 5},
    "--no-repeat-ngram-size 1": {"no_repeat_ngram_size": 1},
    "--frequency-penalty 3": {"frequency_penalty": 3},
    "--logit-bias 65=90 --logit-bias 66=-inf": {"logit_bias": {65: 90, 66: float("-inf")}},
    "--logit-bias 257=90 --min-new-tokens 4": {"logit_bias": {257: 90}, "min_new_tokens": 4},
    "--logit-bias 257=90 --ignore-eos": {"logit_bias": {257: 90}, "ignore_eos": True},
    "--stop d --stop ]": {"stop": ("d", "]")},
    "--beams 3 --length-penalty -2": {"beams": 3, "length_penalty": -2.0},
    "--beams 3 --early-stopping true --logit-bias 257=9": {
        "beams": 3,
        "early_stopping": True,
        "logit_bias": {257: 9},
    },
    "--beams 3 --k 2 --draft-beams 5": {"beams": 3, "k": 2, "draft_beams": 5},
    "--regex [a-f]+": {"grammar": Grammar.regex("[a-f]+")},
    f"--json-schema {SCHEMA.replace(' ', '')}": {"grammar": Grammar.json_schema(SCHEMA)},
}


@pytest.mark.parametrize(("options", "settings"), OPTIONS.items())
def test_an_option_is_a_setting_of_the_request(
    bundle: str, run: Any, options: str, settings: dict[str, Any], engine: Engine
) -> None:
    report = json.loads(run(bundle, "hello", "--max-new-tokens", "12", "--json", *options.split()).stdout)
    answer = engine.generate("hello", **{"max_new_tokens": 12, **settings}).result()
    assert report["token_ids"] == answer.token_ids
    assert (report["text"], report["finish_reason"]) == (answer.text, answer.reason)
    other = {name: value for name, value in settings.items() if name in ("temperature", "seed")}
    if settings != other:
        plain = engine.generate("hello", max_new_tokens=12, **other).result()
        assert (plain.token_ids, plain.text) != (answer.token_ids, answer.text), "the option must show"


def test_grammars_come_from_files(bundle: str, run: Any, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(SCHEMA)
    (tmp_path / "grammar.lark").write_text('start: "yes" | "no"')
    assert run(bundle, "x", "--json-schema", str(tmp_path / "schema.json")).stdout in ("true\n", "false\n")
    result = run(bundle, "x", "--lark", str(tmp_path / "grammar.lark"))
    assert result.stdout in ("yes\n", "no\n")
    assert result.stderr.endswith("ended by grammar\n")


def test_a_seed_that_was_drawn_is_reported_and_repeats_the_text(bundle: str, run: Any) -> None:
    options = [bundle, "hello", "--temperature", "2", "--max-new-tokens", "20", "--json"]
    first, second = (json.loads(run(*options).stdout) for _ in range(2))
    assert first["seed"] != second["seed"]
    assert first["token_ids"] != second["token_ids"]
    repeated = [f"--{name}={first[name]}" for name in ("seed", "k", "verifier", "proposal")]
    assert ids_of(run, *options, *repeated) == first["token_ids"]


def test_a_seed_means_one_text_whatever_is_drafted(bundle: str, run: Any) -> None:
    options = [bundle, "hello", "--temperature", "2", "--max-new-tokens", "20", "--seed", "7"]
    plain = ids_of(run, *options, "--drafter", "none")
    for more in (["--k", "5", "--verifier", "match"], ["--drafter", "suffix"], []):
        assert ids_of(run, *options, *more) == plain
    closing = run(*options).stderr
    assert "verifier match, sampled · seed 7 ·" in closing
    assert "NOT LOSSLESS" in run(*options, "--k", "2", "--lenience", "0.5").stderr


def test_log_probabilities_are_printed_where_they_were_asked_for(bundle: str, run: Any, engine: Engine) -> None:
    options = [bundle, "hello", "--temperature", "1", "--seed", "1", "--top-k", "3", "--max-new-tokens", "4", "--json"]
    for of in ("raw", "shaped"):
        report = json.loads(run(*options, "--logprobs", "2", "--logprobs-of", of).stdout)
        assert list(report) == [*KEYS, "logprobs"]
        settings: dict[str, Any] = {"temperature": 1, "seed": 1, "top_k": 3, "max_new_tokens": 4}
        expected = engine.generate("hello", logprobs=2, logprobs_of=of, **settings).result().logprobs
        assert expected is not None
        assert report["logprobs"] == [
            {"id": entry.token, "logprob": entry.logprob, "top": [list(best) for best in entry.top]}
            for entry in expected
        ]


def test_several_answers_are_all_there(bundle: str, run: Any) -> None:
    options = [bundle, "hello", "--temperature", "2", "--seed", "5", "--max-new-tokens", "8", "--n", "3"]
    answers = json.loads(run(*options, "--json").stdout)["answers"]
    assert [list(answer) for answer in answers] == [KEYS] * 3
    assert len({tuple(answer["token_ids"]) for answer in answers}) == 3
    result = run(*options)
    text = "".join(f"{i} of 3:\n{answer['text']}\n" for i, answer in enumerate(answers, 1))
    assert result.stdout == text
    assert result.stderr.count("ended by max_new_tokens") == 3
    best = json.loads(run(*options[:-2], "--best-of", "3", "--json").stdout)
    assert list(best) == KEYS
    assert best["token_ids"] in [answer["token_ids"] for answer in answers]


def test_the_best_beams_are_answered_with_their_scores(bundle: str, run: Any) -> None:
    options = [bundle, "hello", "--beams", "4", "--n", "2", "--max-new-tokens", "8"]
    answers = json.loads(run(*options, "--json").stdout)["answers"]
    assert [[name for name in answer if name != "score"] for answer in answers] == [KEYS] * 2
    assert answers[0]["score"] > answers[1]["score"]
    result = run(*options)
    assert result.stdout == "".join(f"{i} of 2:\n{answer['text']}\n" for i, answer in enumerate(answers, 1))
    assert "4 beams" in result.stderr
    one = run(*[option for option in options if option not in ("--n", "2")])
    assert one.stdout == f"{answers[0]['text']}\n"


def test_a_template_makes_a_chat_of_the_prompt_unless_it_is_raw(
    bundle: str, chat_bundle: str, run: Any, engine: Engine
) -> None:
    options = ["--max-new-tokens", "12"]
    asked = engine.generate("u:hello\na:", max_new_tokens=12).result().token_ids
    told = engine.generate("s:be brief\nu:hello\na:", max_new_tokens=12).result().token_ids
    plain = engine.generate("hello", max_new_tokens=12).result().token_ids
    assert ids_of(run, chat_bundle, "hello", *options) == asked
    assert ids_of(run, chat_bundle, "--chat", *options, stdin="hello\n") == asked
    assert ids_of(run, chat_bundle, "hello", "--system", "be brief", *options) == told
    assert ids_of(run, chat_bundle, "hello", "--raw", *options) == plain
    assert ids_of(run, bundle, "hello", *options) == plain
    assert len({tuple(ids) for ids in (asked, told, plain)}) == 3


def test_at_a_terminal_drafts_are_coloured_and_a_text_cannot_command_it(bundle: str, terminal: Any) -> None:
    one = terminal(bundle, "hello", "--max-new-tokens", "20", "--k", "3", "--logit-bias", "27=12")
    assert one.wait() == 0
    assert one.shown.startswith("\x1b[1mhello\x1b[0m")
    assert one.shown.count("\x1b[32m") > 0
    assert "␛" in one.shown  # id 27 is the byte that begins a terminal's commands
    assert one.shown.replace("\x1b[32m", "").replace("\x1b[0m", "").count("\x1b") == 2  # bold, and a dim last line
    assert one.shown.rstrip().removesuffix("\x1b[0m").endswith("ended by max_new_tokens")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["hello", "--k", "9"], "k: got 9, expected auto, or 0 to 8"),
        (["hello", "--k", "-1"], "got '-1', expected auto, or a number of tokens"),
        (["hello", "--k", "some"], "got 'some', expected auto, or a number of tokens"),
        ([""], "prompt: got an empty text"),
        (["x", "--max-new-tokens", "0"], "max_new_tokens: got 0"),
        (["x", "--prompt-file", "y"], "got both PROMPT and --prompt-file"),
        (["--prompt-file", "/nowhere/at/all"], "cannot be read"),
        (["x", "--drafter", "oracle"], "'oracle' is not one of"),
        (["x", "--logprobs", "1"], "--logprobs: given without --json or --prompts"),
        (["x", "--logprobs-of", "raw", "--json"], "--logprobs-of: given without --logprobs or --best-of"),
        (["x", "--logit-bias", "5"], "got '5', expected a token id and a number"),
        (["x", "--logit-bias", "5=1", "--logit-bias", "5=2"], "got token id 5 twice"),
        (["x", "--regex", "a", "--json-schema", "{}"], "got json_schema and regex, expected one"),
        (["x", "--json-schema", "{"], "a JSON schema that is not JSON"),
        (["x", "--lark", "/nowhere/at/all"], "--lark /nowhere/at/all: cannot be read"),
        (["x", "--beams", "4", "--slots", "3"], "beams: got 4, expected at most 3, the slots of the engine"),
        (["x", "--beams", "4", "--early-stopping", "soon"], "got 'soon', expected true, false or never"),
        (["x", "--beams", "4", "--compare"], "--beams: given with --compare"),
        (["x", "--picture", "x.svg"], "error: --picture: given without --compare"),
        (["x", "--compare", "--picture", "x.png"], "expected .svg"),
        (["x", "--compare", "--picture", "nowhere/x.svg"], "the folder nowhere does not exist"),
        (["x", "--compare", "--slots", "2"], "error: --slots: given with --compare"),
        (["x", "--compare", "--trace", "x.html"], "error: --trace: given with --compare"),
        (["x", "--compare", "--n", "2", "--temperature", "1"], "error: --n: given with --compare"),
        (["x", "--trace", "x.txt"], "error: --trace x.txt: got a name that ends in '.txt', expected .jsonl or .html"),
        (["x", "--trace", "nowhere/x.html"], "error: --trace nowhere/x.html: the folder nowhere does not exist"),
        (["--prompts", "a", "--out", "b", "--trace", "x.html"], "error: --trace: given with --prompts"),
        (["x", "--best-of", "2", "--temperature", "1", "--trace", "x.html"], "error: --best-of: given with --trace"),
        (["x", "--slots", "0"], "slots: got 0"),
        (["x", "--threads", "0"], "threads: got 0"),
        (["x", "--chat"], "has no chat template"),
        (["x", "--system", "be brief"], "has no chat template"),
        (["x", "--raw", "--chat"], "--raw: given with --chat"),
        (["x", "--raw", "--system", "y"], "--system: given with --raw"),
        (["x", "--prompts", "y"], "--prompts: given without --out"),
        (["x", "--out", "y"], "--out: given without --prompts"),
        (["x", "--prompts", "y", "--out", "z"], "PROMPT: given with --prompts"),
        (["--prompts", "/nowhere/at/all", "--out", "/tmp/never-written"], "cannot be read"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_1(bundle: str, run: Any, arguments: list[str], says: str) -> None:
    result = run(bundle, *arguments)
    assert result.exit_code == 1
    assert says in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_an_invalid_bundle_is_one_line_and_exit_code_1(run: Any, tmp_path: Path) -> None:
    for path, says in ((tmp_path, "manifest.json is missing"), (tmp_path / "none", "no such directory")):
        result = run(str(path), "hello")
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert says in result.stderr


def test_a_prompt_that_is_no_utf_8_is_one_line(bundle: str, process: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompt"
    file.write_bytes(b"caf\xe9")
    with file.open("rb") as stdin:
        results = [
            process(bundle, stdin=stdin),
            process(bundle, b"caf\xe9"),
            process(bundle, "--prompt-file", str(file)),
        ]
    for result, says in zip(results, ("byte 0xe9 at position 3", "at character 3", "as UTF-8"), strict=True):
        assert (result.returncode, result.stderr.count("\n"), result.stdout) == (1, 1, "")
        assert says in result.stderr


def test_more_threads_than_memory_gives_is_one_line(bundle: str, process: Any) -> None:
    def limit() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # stacks of a thousand threads

    result = process(bundle, "hello", "--threads", "20000", preexec_fn=limit)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith("error: threads: got 20000")


def test_help_shows_every_option_once_and_in_groups(run: Any) -> None:
    result = run("--help")
    assert result.exit_code == 0
    titles = [line for line in result.stdout.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles[0] == "Prompt:"
    assert titles[-1] == "Other options:"
    for parameter in specrun.params:
        for name in parameter.opts:
            if name.startswith("--"):
                assert result.stdout.count(f"  {name} ") == 1, name


@pytest.mark.parametrize(("typed", "tokens"), [("control", 1), ("text", len("<eos>"))])
def test_a_typed_control_token_is_what_was_asked(chat_bundle: str, run: Any, typed: str, tokens: int) -> None:
    options = ["--typed-control-tokens", typed, "--max-new-tokens", "1", "--json"]
    report = json.loads(run(chat_bundle, "<eos>", *options).stdout)
    assert report["prompt_tokens"] == len("u:\na:") + tokens
