"""specrun through click's runner: what goes where, exit codes, one-line errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mxspec import Engine
from mxspec.runtime import cli
from mxspec.runtime.events import Event
from mxspec.runtime.generation import Generation

COUNTS = ["k", "rounds", "drafted", "evaluated", "accepted", "bonus"]
KEYS = ["text", "token_ids", *COUNTS, "prefill_s", "decode_s", "decode_tok_per_s"]


@pytest.fixture(scope="module")
def bundle(tiny_bundles: dict[str, Path]) -> str:
    return str(tiny_bundles["near"])


def specrun(*arguments: str, stdin: str | None = None, **settings: Any) -> Result:
    return CliRunner().invoke(cli.main, arguments, input=stdin, **settings)


def test_the_text_goes_to_standard_output_and_the_closing_line_beside_it(bundle: str) -> None:
    result = specrun(bundle, "hello", "--max-new-tokens", "20", "--k", "3")
    assert result.exit_code == 0
    engine = Engine(bundle)
    ids = [event.id for event in engine.generate("hello", max_new_tokens=20, k=3) if hasattr(event, "id")]
    assert result.stdout == engine.tokenizer.decode(ids) + "\n"
    for word in ("TTFT", "tok/s", "acceptance", "tokens/round", "rounds", "K = 3"):
        assert word in result.stderr
    assert result.stderr.count("\n") == 1
    assert "\x1b" not in result.output


def test_json_is_one_object_with_the_keys_that_were_promised(bundle: str) -> None:
    result = specrun(bundle, "hello", "--max-new-tokens", "30", "--k", "4", "--json")
    report = json.loads(result.stdout)
    assert list(report) == KEYS
    assert result.stderr == ""
    assert len(report["token_ids"]) == 30 == report["accepted"] + report["rounds"]
    assert 0 < report["accepted"] <= report["evaluated"] <= report["drafted"]
    assert report["k"] == 4
    assert report["decode_tok_per_s"] == pytest.approx(29 / report["decode_s"])
    assert report["text"] == Engine(bundle).tokenizer.decode(report["token_ids"])


@pytest.mark.parametrize(("options", "k"), [([], "auto"), (["--k", "auto"], "auto"), (["--temperature", "1"], 4)])
def test_k_is_chosen_by_cost_where_the_text_does_not_depend_on_it(
    bundle: str, options: list[str], k: int | str
) -> None:
    report = json.loads(specrun(bundle, "hello", "--max-new-tokens", "30", "--json", *options).stdout)
    assert report["k"] == k
    assert report["drafted"] > 0
    assert specrun(bundle, "hello", *options).stderr.rstrip().endswith(f"K = {k}")


@pytest.mark.parametrize("options", [["--k", "0"], ["--drafter", "none"], ["--drafter", "none", "--k", "5"]])
def test_plain_decoding_writes_the_same_text(bundle: str, options: list[str]) -> None:
    plain, speculative = (
        json.loads(specrun(bundle, "hello", "--max-new-tokens", "30", "--json", *more).stdout)
        for more in (options, ["--k", "5"])
    )
    assert plain["token_ids"] == speculative["token_ids"]
    assert (plain["k"], plain["drafted"], plain["accepted"], plain["rounds"]) == (0, 0, 0, 30)


def test_the_prompt_comes_from_an_argument_a_file_or_standard_input(bundle: str, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("naïve €", encoding="utf-8")
    options = ["--max-new-tokens", "10"]
    texts = {
        specrun(bundle, "naïve €", *options).stdout,
        specrun(bundle, "-", *options, stdin="naïve €").stdout,
        specrun(bundle, *options, stdin="naïve €").stdout,
        specrun(bundle, "--prompt-file", str(file), *options).stdout,
    }
    assert len(texts) == 1
    assert texts != {specrun(bundle, "other", *options).stdout}


def test_sampling_options_reach_the_text(bundle: str) -> None:
    def ids(*options: str) -> list[int]:
        report = specrun(bundle, "hello", "--max-new-tokens", "20", "--json", *options).stdout
        result: list[int] = json.loads(report)["token_ids"]
        return result

    hot = ["--temperature", "2"]
    assert ids(*hot, "--seed", "1") == ids(*hot, "--seed", "1") != ids(*hot, "--seed", "2")
    assert ids(*hot, "--top-k", "1") == ids(*hot, "--top-p", "1e-9") == ids("--threads", "1") == ids()


def test_accepted_draft_tokens_are_coloured_on_a_terminal(bundle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "on_terminal", lambda: True)
    result = specrun(bundle, "hello", "--max-new-tokens", "20", "--k", "3", color=True)
    accepted = json.loads(specrun(bundle, "hello", "--max-new-tokens", "20", "--k", "3", "--json").stdout)["accepted"]
    assert 0 < result.stdout.count("\x1b[32m") <= accepted
    assert "hello" in result.stdout
    assert "TTFT" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize("json_output", [False, True])
@pytest.mark.parametrize("after", [0, 7])
def test_ctrl_c_ends_the_text_cleanly(
    bundle: str, json_output: bool, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0

    def interrupted(self: Generation) -> Event:
        nonlocal seen
        seen += 1
        if seen > after:
            raise KeyboardInterrupt
        return next(self._events)

    monkeypatch.setattr(Generation, "__next__", interrupted)
    result = specrun(bundle, "hello", "--k", "2", *["--json"] * json_output)
    assert result.exit_code == 130
    if json_output:
        report = json.loads(result.stdout)
        assert list(report) == KEYS
        assert 0 <= len(report["token_ids"]) <= after
    else:
        assert result.stdout.endswith("\n")
        assert "TTFT" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["hello", "--k", "9"], "k: got 9, expected auto, or 0 to 8"),
        (["hello", "--k", "-1"], "got '-1', expected auto, or a number of tokens"),
        (["hello", "--k", "some"], "got 'some', expected auto, or a number of tokens"),
        ([""], "prompt: got an empty text"),
        (["x" * 97], "prompt: got 97 tokens, expected 1 to 96"),
        (["x", "--temperature", "-1"], "temperature: got -1"),
        (["x", "--top-p", "0"], "top_p: got 0"),
        (["x", "--max-new-tokens", "0"], "0 is not in the range"),
        (["x", "--prompt-file", "y"], "got both PROMPT and --prompt-file"),
        (["--prompt-file", "/nowhere/at/all"], "cannot be read"),
        (["x", "--drafter", "oracle"], "'oracle' is not one of"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_1(bundle: str, arguments: list[str], says: str) -> None:
    result = specrun(bundle, *arguments)
    assert result.exit_code == 1
    assert says in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_what_is_no_bundle_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    for path, says in ((tmp_path, "manifest.json is missing"), (tmp_path / "none", "no such directory")):
        result = specrun(str(path), "hello")
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert says in result.stderr
