"""--trace: the file says what the engine's events say, and changes no text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mxspec import Engine, Round, Token

SAMPLED = ["--temperature", "1", "--seed", "3", "--k", "4", "--verifier", "mrs", "--proposal", "sampled"]


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """The header, the rounds and the ends of a trace."""
    header, *rest = map(json.loads, path.read_text().splitlines())
    return header, [one for one in rest if "round" in one], [one for one in rest if "finished" in one]


def emitted(one: dict[str, Any]) -> list[dict[str, Any]]:
    """The tokens of a round that went into the text."""
    return [*(g for g in one["drafted"] if g["decision"] == "accepted"), *([one["next"]] if one["next"] else [])]


@pytest.mark.parametrize("options", [["--k", "3"], SAMPLED])
def test_json_lines_are_the_rounds_of_the_engine(bundle: str, run: Any, tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "trace.jsonl"
    result = run(bundle, "hello", "--max-new-tokens", "30", *options, "--trace", str(path))
    assert result.exit_code == 0
    greedy = options != SAMPLED
    settings: dict[str, Any] = {"k": 3}
    if not greedy:
        settings = {"temperature": 1.0, "seed": 3, "k": 4, "verifier": "mrs", "proposal": "sampled"}
    with Engine(bundle) as engine:
        events = list(engine.generate("hello", max_new_tokens=30, trace=True, **settings))
    header, rounds, (end,) = read(path)
    assert (header["trace"], header["k"], header["samples"]) == (1, settings["k"], 1)
    assert (header["prompt"], header["prompt_tokens"]) == ("hello", 5)
    assert header["verifier"] == ("greedy" if greedy else "mrs")
    assert 0 < header["plain_step_s"] < 1
    tokens = [event for event in events if isinstance(event, Token)]
    written = [token for one in rounds for token in emitted(one)]
    assert [token["id"] for token in written] == [token.id for token in tokens]
    assert "".join(token["text"] for token in written) + end["tail"] + "\n" == result.stdout
    for one, done in zip(rounds, [event for event in events if isinstance(event, Round)], strict=True):
        assert done.trace is not None
        assert (len(one["drafted"]), one["k"], one["why"]) == (done.drafted, done.trace.k, done.trace.why)
        assert [guess["id"] for guess in one["drafted"]] == [guess.token for guess in done.trace.guesses]
        assert [guess["target_p"] for guess in one["drafted"]] == [g.target_probability for g in done.trace.guesses]
        assert 0 <= one["draft_s"] + one["target_s"] <= one["seconds"]
    assert [one["place"] for one in rounds] == [sum(len(emitted(o)) for o in rounds[:i]) for i in range(len(rounds))]
    assert [one["round"] for one in rounds] == list(range(1, len(rounds) + 1))
    assert (end["finished"], end["emitted"]) == ("max_new_tokens", 30)


def test_a_trace_changes_nothing_that_is_printed(bundle: str, run: Any, tmp_path: Path) -> None:
    plain, traced = (
        json.loads(run(bundle, "hello", *SAMPLED, "--max-new-tokens", "20", "--json", *more).stdout)
        for more in ([], ["--trace", str(tmp_path / "trace.html")])
    )
    assert (plain["text"], plain["token_ids"], plain["rounds"]) == (
        traced["text"],
        traced["token_ids"],
        traced["rounds"],
    )
    assert "<!doctype html>" in (tmp_path / "trace.html").read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["trace.html"]


def test_each_sample_has_its_rounds(bundle: str, run: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    options = ["--n", "3", "--max-new-tokens", "12", *SAMPLED, "--trace", str(path), "--json"]
    answers = json.loads(run(bundle, "hello", *options).stdout)["answers"]
    header, rounds, ends = read(path)
    assert header["samples"] == 3
    for sample, answer in enumerate(answers):
        own = [one for one in rounds if one["sample"] == sample]
        assert [token["id"] for one in own for token in emitted(one)] == answer["token_ids"]
        assert len(own) == answer["rounds"]
    assert sorted(one["sample"] for one in ends) == [0, 1, 2]


@pytest.mark.parametrize(
    "options", [["--regex", "(abcdefgh)+", "--k", "4"], ["--drafter", "none"], ["--min-new-tokens", "30"]]
)
def test_other_ways_to_write_are_traced(bundle: str, run: Any, tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "trace.jsonl"
    result = run(bundle, "hello", "--max-new-tokens", "30", *options, "--trace", str(path))
    assert result.exit_code == 0
    _, rounds, (end,) = read(path)
    text = "".join(token["text"] for one in rounds for token in emitted(one)) + end["tail"]
    assert text + "\n" == result.stdout
    if "--regex" in options:
        forced = [guess for one in rounds for guess in one["drafted"] if guess["origin"] == "grammar"]
        assert forced
        assert {one["why"] for one in rounds[1:]} & {"grammar"}


def test_a_chat_of_many_turns_refuses_it(chat_bundle: str, terminal: Any, tmp_path: Path) -> None:
    shell = terminal(chat_bundle, "--chat", "--trace", str(tmp_path / "x.html"))
    shell.read_until("--trace: given with a chat of many turns")
    assert shell.wait() == 1


def test_one_turn_of_a_chat_is_traced(chat_bundle: str, run: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    assert run(chat_bundle, "hello", "--chat", "--max-new-tokens", "5", "--trace", str(path)).exit_code == 0
    assert read(path)[0]["prompt"] == "hello"


def test_json_has_the_words_of_llama_server(bundle: str, run: Any) -> None:
    report = json.loads(run(bundle, "hello", "--k", "3", "--max-new-tokens", "20", "--json").stdout)
    timings = report["timings"]
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (report["drafted"], report["accepted"])
    assert (timings["prompt_n"] + timings["cache_n"], timings["predicted_n"]) == (report["prompt_tokens"], 20)
    assert sum(report["origins"].values()) == 20
    assert report["draft_s"] + report["target_s"] + report["rest_s"] == pytest.approx(report["decode_s"])
