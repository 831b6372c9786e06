"""speccheck tasks and mxspec-eval: verdicts, engines that are wrong, what is missing."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mxspec.evaluate.speccheck import main
from mxspec.evaluate.tasks.lm_eval_command import main as mxspec_eval
from mxspec.evaluate.tasks.lm_eval_command import write_tasks
from mxspec.evaluate.tasks.task import KINDS
from mxspec.runtime.engine import Engine
from mxspec.runtime.request import Request

HERE = Path(__file__).parent
SUMMARIES, CODE = f"summarisation={HERE / 'summarisation.jsonl'}", f"code={HERE / 'code.jsonl'}"


def run(bundle: Path, *options: object) -> Result:
    return CliRunner().invoke(main, ["tasks", str(bundle), "--max-new-tokens", "24", *map(str, options)])


@pytest.fixture
def many(tmp_path: Path) -> str:
    rows = [{"document": f"a{number} " * 5, "summary": f"{number} is said"} for number in range(12)]
    (tmp_path / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"summarisation={tmp_path / 'many.jsonl'}"


def test_a_right_engine_passes(tiny_bundles: dict[str, Path], tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    options = ("--drafter", "model", "--drafter", "suffix", "--run-code", "--json", "--record", record)
    result = run(tiny_bundles["near"], "--task", SUMMARIES, "--task", CODE, *options)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert json.loads(record.read_text())["result"] == found
    assert [(task["kind"], task["items"], len(task["ways"])) for task in found["tasks"]] == [
        ("summarisation", 4, 3),
        ("code", 4, 3),
    ]
    assert found["isolation"]
    assert found["passed"]


def submit_wrongly(patch: pytest.MonkeyPatch, bias: Callable[[Request], dict[int, float] | None]) -> None:
    """Add a bias to the logits of some requests."""
    honest = Engine.submit_all
    patch.setattr(
        Engine,
        "submit_all",
        lambda engine, requests: honest(engine, [replace(each, logit_bias=bias(each)) for each in requests]),
    )


def test_ids_that_differ_fail_and_say_where(
    tiny_bundles: dict[str, Path], many: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_wrongly(monkeypatch, lambda each: {9: 50.0} if each.drafter == "model" else None)
    result = run(tiny_bundles["near"], "--task", many)
    assert result.exit_code == 2
    assert "with drafter model: 12 of 12 greedy answers differ: item 1, token 1: got 9, expected" in result.stderr


def test_samples_of_another_distribution_fail(
    tiny_bundles: dict[str, Path], many: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The score is the share of a letter, which the wrong engine likes."""
    kind = replace(KINDS["summarisation"], score=lambda _row, answer: answer.count("a") / 24)
    monkeypatch.setitem(KINDS, "summarisation", kind)
    options = ("--task", many, "--temperature", "1", "--seeds", "2", "--limit")
    right = run(tiny_bundles["near"], *options, "12", "--json")
    assert right.exit_code == 0, right.output
    (task,) = json.loads(right.stdout)["tasks"]
    assert [(each["temperature"], each["seeds"]) for each in task["scores"]] == [(0.0, 1), (1.0, 2)]
    few = run(tiny_bundles["near"], *options, "9")
    assert few.exit_code == 2
    assert "too few" in few.stderr

    submit_wrongly(monkeypatch, lambda each: {ord("a"): 6.0} if each.drafter == "model" and each.temperature else None)
    wrong = run(tiny_bundles["near"], *options, "12")
    assert wrong.exit_code == 2
    assert "excludes 0" in wrong.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--task", "summary=x.jsonl"), "did you mean 'summarisation'?"),
        (("--task", "summarisation=absent.jsonl"), "cannot be read"),
        (("--task", f"summarisation={HERE / 'code.jsonl'}"), "line 1: has no text named 'document'"),
        (("--task", SUMMARIES, "--seeds", "3"), "give --temperature"),
        (("--task", CODE, "--temperature", "1"), "give --run-code"),
        (("--task", SUMMARIES, "--max-new-tokens", "96"), "expected fewer than 96"),
        (("--task", SUMMARIES, "--drafter", "modle"), "modle"),
    ],
)
def test_mistakes_are_one_line(tiny_bundles: dict[str, Path], options: tuple[str, ...], said: str) -> None:
    result = run(tiny_bundles["near"], *options)
    assert result.exit_code == 1, result.output
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_package_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("lm_eval", "mxspec.evaluate.tasks.lm_eval_model"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    result = CliRunner().invoke(mxspec_eval, ["--model_args", "bundle=x"])
    assert result.exit_code == 1
    assert result.stderr == "error: mxspec-eval needs lm_eval: pip install 'mxspec[evaluate]'\n"


def test_the_harness_reads_our_task_files(tiny_bundles: dict[str, Path], tmp_path: Path) -> None:
    """Its own evaluator, over the file that mxspec-eval writes; without its thousands of other tasks."""
    lm_eval = importlib.import_module("lm_eval")
    from lm_eval.tasks import TaskManager

    from mxspec.evaluate.tasks.lm_eval_model import MxspecLM

    files = [(KINDS["summarisation"], HERE / "summarisation.jsonl"), (KINDS["code"], HERE / "code.jsonl")]
    names = write_tasks(tmp_path, files)
    lm = MxspecLM(str(tiny_bundles["near"]))
    found = lm_eval.simple_evaluate(
        model=lm,
        tasks=names,
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        gen_kwargs={"max_gen_toks": 12},
        confirm_run_unsafe_code=True,
        bootstrap_iters=0,
    )
    lm.close()
    assert found["results"][names[0]]["rouge2,none"] == 0.0
    assert found["results"][names[1]]["pass_at_1,none"] == 0.0
    assert len(found["samples"][names[1]]) == 4


def test_mxspec_eval_calls_the_harness_with_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval import __main__ as harness

    seen: list[list[str]] = []
    monkeypatch.setattr(harness, "cli_evaluate", lambda: seen.append(sys.argv[1:]))
    result = CliRunner().invoke(mxspec_eval, ["--model_args", "bundle=b", "--tasks", "arc_easy", "--limit", "2"])
    assert result.exit_code == 0, result.output
    assert seen == [["run", "--model", "mxspec", "--model_args", "bundle=b", "--tasks", "arc_easy", "--limit", "2"]]
    both = CliRunner().invoke(mxspec_eval, ["--task", SUMMARIES, "--tasks", "arc_easy"])
    assert both.exit_code == 1
    assert "expected one of them" in both.stderr
