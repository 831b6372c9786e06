"""Batch jobs: a line an answer, in order, whatever becomes of the process; bad lines end nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mxspec import Engine

from .conftest import slow

SETTINGS = ["--max-new-tokens", "20"]
LINES = 240  # of a job that is to be at work yet when another process has begun on a loaded machine
SLOW = slow(0.01)


def write_lines(path: Path, entries: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on who else was there."""
    kept = ("line", "hash", "key", "text", "token_ids", "finish_reason", "seed", "error")
    return {name: line[name] for name in kept if name in line}


def many(count: int) -> list[dict[str, Any]]:
    """Short and long prompts and answers, greedy and sampled."""
    rng = random.Random(3)
    return [
        {
            "key": f"k{i}",
            "prompt": "ab" * rng.randint(1, 20),
            "max_new_tokens": rng.randint(1, 40),
            **({"temperature": 1.0, "seed": i} if i % 3 == 0 else {}),
        }
        for i in range(count)
    ]


def test_each_line_gets_the_answer_it_gets_alone(bundle: str, run: Any, tmp_path: Path) -> None:
    entries = many(40)
    prompts, out = write_lines(tmp_path / "in.jsonl", entries), tmp_path / "out.jsonl"
    result = run(bundle, "--prompts", str(prompts), "--out", str(out), "--slots", "3")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("40 of 40 lines answered · ")
    lines = read_lines(out)
    assert [(line["line"], line["key"]) for line in lines] == [(i + 1, f"k{i}") for i in range(40)]
    engine = Engine(bundle, slots=1)
    for line, entry in zip(lines, entries, strict=True):
        alone = engine.generate(**{name: value for name, value in entry.items() if name != "key"}).result()
        assert (line["token_ids"], line["text"], line["finish_reason"]) == (alone.token_ids, alone.text, alone.reason)
        assert line["prompt_tokens"] == len(entry["prompt"])


def test_the_commands_settings_are_defaults_of_each_line(bundle: str, run: Any, tmp_path: Path) -> None:
    entries: list[dict[str, Any]] = [
        {"prompt": "x"},
        {"prompt": "x", "max_new_tokens": 3},
        {"prompt": [1, 2, 3], "temperature": 0, "k": 0},
        {"prompt": "x", "logprobs": 1, "temperature": None},
        {"prompt": "x", "n": 2},
        {"prompt": "x", "regex": "[ab]+", "logit_bias": {"97": -5}},
        {"prompt": "x", "json_schema": {"type": "boolean"}, "id": [1]},
        {"prompt": "x", "stop": "d"},
    ]
    prompts, out = write_lines(tmp_path / "in.jsonl", entries), tmp_path / "out.jsonl"
    options = ["--temperature", "1", "--seed", "4", "--max-new-tokens", "5", "--json"]
    result = run(bundle, "--prompts", str(prompts), "--out", str(out), *options)
    summary = json.loads(result.stdout)
    assert (summary["lines"], summary["answered"], summary["bad_lines"]) == (8, 8, [])
    first, short, ids, logprobs, several, regex, schema, stop = read_lines(out)
    assert (first["seed"], first["k"], len(first["token_ids"])) == (4, "auto", 5)
    assert (short["seed"], len(short["token_ids"])) == (4, 3)
    assert (ids["seed"], ids["k"], ids["prompt_tokens"]) == (None, 0, 3)
    assert len(logprobs["logprobs"]) == 5
    assert logprobs["token_ids"] == first["token_ids"] == several["answers"][0]["token_ids"]
    assert len(several["answers"]) == 2
    assert set(regex["text"]) <= {"a", "b"}
    assert schema["text"] in ("true", "false")
    assert schema["key"] == [1]
    assert "d" not in stop["text"]
    tokens = sum(len(line["token_ids"]) for line in (first, short, ids, logprobs, regex, schema, stop)) + 10
    for name in ("drafted", "evaluated", "accepted"):
        answers = [answer for line in read_lines(out) for answer in line.get("answers", [line])]
        assert summary[name] == sum(answer[name] for answer in answers)
    assert 0 < summary["accepted"] <= summary["evaluated"]
    assert summary["tokens"] == tokens


def test_prompts_are_chat_messages_if_there_is_a_template(chat_bundle: str, run: Any, tmp_path: Path) -> None:
    entries = [{"prompt": "hi"}, {"messages": [{"role": "user", "content": "hi"}]}, {"prompt": [104, 105]}]
    prompts = write_lines(tmp_path / "in.jsonl", entries)
    counts = []
    for i, options in enumerate(([], ["--system", "be brief"], ["--raw"])):
        out = tmp_path / f"{i}.jsonl"
        assert run(chat_bundle, "--prompts", str(prompts), "--out", str(out), *SETTINGS, *options).exit_code == 0
        counts.append([line["prompt_tokens"] for line in read_lines(out)])
    assert counts == [[7, 7, 2], [18, 7, 2], [2, 7, 2]]


BAD = {
    "nonsense": "not valid JSON",
    '{"prompt": "x"': "not valid JSON",
    '{"prompt": NaN}': "NaN is not a JSON number",
    "[1, 2]": "got a list, expected an object with a prompt",
    '{"promt": "x"}': "unknown key 'promt' (did you mean 'prompt'?)",
    '{"prompt": "x", "temprature": 1}': "unknown key 'temprature' (did you mean 'temperature'?)",
    '{"prompt": "x", "grammar": "x"}': "unknown key 'grammar'",
    "{}": "expected either a prompt or messages",
    '{"prompt": "x", "messages": []}': "expected either a prompt or messages",
    '{"messages": [{"role": "user", "content": "x"}]}': "has no chat template",
    '{"prompt": ""}': "got 0 tokens",
    '{"prompt": "\\ud800"}': "half a surrogate pair",
    '{"prompt": "x", "temperature": "hot"}': "temperature: got 'hot'",
    '{"prompt": "x", "drafter": 5}': "drafter: got 5",
    '{"prompt": "x", "ignore_eos": "yes"}': "ignore_eos: got 'yes'",
    '{"prompt": "x", "logit_bias": {"a": 1}}': "got the token id 'a'",
    '{"prompt": "x", "logit_bias": [1]}': "logit_bias: got [1]",
    '{"prompt": "x", "stop": 5}': "stop: got int",
    '{"prompt": "x", "max_new_tokens": true}': "max_new_tokens: got True",
    '{"prompt": "x", "logprobs": "all"}': "logprobs: got 'all'",
    '{"prompt": "x", "cache_key": 5}': "cache_key: got 5",
    '{"prompt": "x", "regex": "("}': "grammar: ",
    '{"prompt": "x", "regex": 5}': "grammar: got 5",
    '{"prompt": "x", "json_schema": [1]}': "as JSON schema",
    '{"prompt": "x", "regex": "a", "lark": "b"}': "expected one of them",
    '{"prompt": "x", "key": 1, "id": 2}': "id: got id and key, expected one of them",
}


def test_a_bad_line_is_reported_by_number_and_ends_nothing(bundle: str, run: Any, tmp_path: Path) -> None:
    good = b'{"prompt": "x", "key": "good"}\n'
    prompts, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    prompts.write_bytes(good + b"\n" + b"".join(line.encode() + b"\n" + good for line in BAD) + b'{"key": "\xff"}')
    bad = [3 + 2 * i for i in range(len(BAD))]
    bad.append(bad[-1] + 2)
    for _ in range(2):  # the second run finds all answered
        result = run(bundle, "--prompts", str(prompts), "--out", str(out), *SETTINGS)
        assert result.exit_code == 1
        *reports, last = result.stderr.splitlines()
        assert last.startswith(f"{len(BAD) + 1} of {2 * len(BAD) + 2} lines answered · {len(bad)} bad (line 3, 5, 7, ")
        lines = read_lines(out)
        assert [line["line"] for line in lines if "error" in line] == bad
        for line, says in zip((line for line in lines if "error" in line), BAD.values(), strict=False):
            assert says in line["error"]
        answers = {tuple(line["token_ids"]) for line in lines if line["key"] == "good"}
        assert len(answers) == 1
    assert reports == []
    out.unlink()
    result = run(bundle, "--prompts", str(prompts), "--out", str(out), *SETTINGS)
    for report, number in zip(result.stderr.splitlines(), bad, strict=False):
        assert report.startswith(f"error: {prompts} line {number}: ")


def test_a_killed_job_resumes_without_a_lost_or_doubled_line(bundle: str, tmp_path: Path) -> None:
    entries = many(60)
    entries[7]["nonsense"] = 1
    prompts, out, whole = write_lines(tmp_path / "in.jsonl", entries), tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    arguments = [bundle, "--prompts", str(prompts), "--slots", "4", "--out"]
    subprocess.run([sys.executable, "-m", "mxspec.runtime.start", *arguments, str(whole)], capture_output=True)
    sizes = []
    for _ in range(3):
        before = out.stat().st_size if out.exists() else 0
        process = subprocess.Popen([sys.executable, "-c", SLOW, *arguments, str(out)], stderr=subprocess.PIPE)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and (not out.exists() or out.stat().st_size < before + 6000):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        sizes.append(out.read_bytes().count(b"\n"))
    assert 0 < sizes[0] < sizes[1] < sizes[2] < 60
    with out.open("r+b") as file:
        file.truncate(out.stat().st_size - 5)  # as if the kill had come amid a line
    process = subprocess.Popen(
        [sys.executable, "-m", "mxspec.runtime.start", *arguments, str(out)], stderr=subprocess.PIPE, text=True
    )
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "59 of 60 lines answered · 1 bad (line 8)" in errors
    assert list(map(without_times, read_lines(out))) == list(map(without_times, read_lines(whole)))


def test_a_truncated_line_is_answered_again(bundle: str, run: Any, tmp_path: Path) -> None:
    prompts, out = write_lines(tmp_path / "in.jsonl", many(3)), tmp_path / "out.jsonl"
    arguments = [bundle, "--prompts", str(prompts), "--out", str(out)]
    assert run(*arguments).exit_code == 0
    whole = out.read_bytes()
    expected = list(map(without_times, read_lines(out)))
    second = whole.index(b"\n") + 1
    for end in (0, 1, 5, second - 1, second, second + 1, second + 40, len(whole) - 1):
        out.write_bytes(whole[:end])
        assert run(*arguments).exit_code == 0
        assert list(map(without_times, read_lines(out))) == expected
        assert out.read_bytes().startswith(whole[: end if end >= second else 0][:second])
    out.write_bytes(whole[: second + 20] + b"x" * 5000)
    assert run(*arguments).exit_code == 0
    assert list(map(without_times, read_lines(out))) == expected


def test_the_output_of_another_job_is_not_changed(bundle: str, chat_bundle: str, run: Any, tmp_path: Path) -> None:
    prompts, out = write_lines(tmp_path / "in.jsonl", many(3)), tmp_path / "out.jsonl"
    arguments = ["--prompts", str(prompts), "--out", str(out)]
    assert run(bundle, *arguments).exit_code == 0
    whole = out.read_bytes()
    others = [(bundle, *arguments, "--min-new-tokens", "1"), (chat_bundle, *arguments)]
    for other in others:
        result = run(*other)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert "answer to line 1 is of another line, bundle or settings" in result.stderr
    first, *rest = prompts.read_bytes().splitlines(keepends=True)
    for changed in (rest, [first, *reversed(rest)], [first]):
        prompts.write_bytes(b"".join(changed))
        assert "another line" in run(bundle, *arguments).stderr
    assert out.read_bytes() == whole
    prompts.write_bytes(b"".join([first, *rest, first]))  # more lines may come
    assert "4 of 4 lines answered" in run(bundle, *arguments).stderr
    assert out.read_bytes().startswith(whole)
    for stranger in (b"a text", b"a text\n", b'{"line": 1}\n', b"[]\n", b"\xff\n"):
        out.write_bytes(stranger)
        assert "line 1 was not written by a batch job" in run(bundle, *arguments).stderr
        assert out.read_bytes() == stranger


def test_invalid_files(bundle: str, run: Any, tmp_path: Path) -> None:
    prompts = write_lines(tmp_path / "in.jsonl", many(1))
    before = prompts.read_bytes()
    for out, says in (
        (prompts, "is the file of the prompts"),
        (tmp_path, "Is a directory"),
        (tmp_path / "none" / "out", "No such file"),
        (Path("/dev/zero"), "is not a regular file"),
    ):
        result = run(bundle, "--prompts", str(prompts), "--out", str(out))
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert says in result.stderr
    assert prompts.read_bytes() == before
    out = tmp_path / "out"
    for other, says in ((Path("/dev/zero"), "is not a regular file"), (tmp_path, "is not a regular file")):
        result = run(bundle, "--prompts", str(other), "--out", str(out))
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert says in result.stderr


def test_a_full_disk_is_one_line_and_the_job_can_go_on(bundle: str, process: Any, tmp_path: Path) -> None:
    def limit() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))

    prompts, out = write_lines(tmp_path / "in.jsonl", many(10)), tmp_path / "out.jsonl"
    arguments = [bundle, "--prompts", str(prompts), "--out", str(out)]
    result = process(*arguments, preexec_fn=limit)
    assert (result.returncode, result.stderr) == (1, f"error: --out {out}: File too large\n")
    assert process(*arguments).returncode == 0
    assert [line["line"] for line in read_lines(out)] == list(range(1, 11))


def test_two_jobs_do_not_write_one_file(bundle: str, process: Any, tmp_path: Path) -> None:
    prompts, out = write_lines(tmp_path / "in.jsonl", many(LINES)), tmp_path / "out.jsonl"
    arguments = [bundle, "--prompts", str(prompts), "--out", str(out)]
    first = subprocess.Popen([sys.executable, "-c", SLOW, *arguments], stderr=subprocess.PIPE, text=True)
    while not out.exists() or not out.stat().st_size:
        time.sleep(0.01)
    second = process(*arguments)
    assert (second.returncode, second.stderr) == (1, f"error: --out {out}: another job is writing it\n")
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate()
    assert first.returncode == 130
    assert errors.endswith("interrupted: the same command goes on from here\n")
    assert errors.count("\n") == 1
    done = len(read_lines(out))
    assert 0 < done < LINES
    assert errors.startswith(f"{done} of {LINES} lines answered")
    assert process(*arguments).returncode == 0
    assert [line["line"] for line in read_lines(out)] == list(range(1, LINES + 1))


def test_a_terminal_sees_a_bar_with_tokens_a_second(bundle: str, terminal: Any, tmp_path: Path) -> None:
    prompts, out = write_lines(tmp_path / "in.jsonl", [*many(20), {"promt": "x"}]), tmp_path / "out.jsonl"
    job = terminal(bundle, "--prompts", str(prompts), "--out", str(out), code=SLOW)
    assert job.wait() == 1
    for text in ("answering", "/21", "tok/s", f"error: {prompts} line 21: unknown key 'promt'"):
        assert text in job.shown
    assert "20 of 21 lines answered · 1 bad (line 21)" in job.shown.splitlines()[-1]


def test_a_long_answer_occupies_only_its_own_slot(bundle: str, run: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Answers after it are made while it is written, and wait for it."""
    entries = [
        {"prompt": "x", "max_new_tokens": 90, "k": 0},
        *({"prompt": "y", "max_new_tokens": 2} for _ in range(30)),
    ]
    prompts, out = write_lines(tmp_path / "in.jsonl", entries), tmp_path / "out.jsonl"
    steps = 0
    from mxspec.runtime.scheduling.scheduler import Scheduler

    step = Scheduler.step

    def counted(self: Scheduler) -> None:
        nonlocal steps
        steps += 1
        time.sleep(0.005)
        step(self)

    monkeypatch.setattr(Scheduler, "step", counted)
    assert run(bundle, "--prompts", str(prompts), "--out", str(out), "--slots", "2").exit_code == 0
    assert steps < 115, "30 answers of 2 steps beside one of 90"
    assert os.path.getsize(out) > 0
