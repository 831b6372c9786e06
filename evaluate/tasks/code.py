"""Code, rows in the format of HumanEval: the beginning of a function and its tests; pass@1."""

from __future__ import annotations

from mxspec.evaluate.tasks.sandbox import run_code
from mxspec.evaluate.tasks.task import Row, Task

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")  # of Chen et al. 2021, section 3: the function is over


def prompt(row: Row) -> str:
    """The beginning of the function."""
    return str(row["prompt"])


def program(row: Row, answer: str) -> str:
    """The whole function, its tests, and their call."""
    return f"{row['prompt']}{answer}\n{row['test']}\ncheck({row['entry_point']})\n"


def pass_at_1(row: Row, answer: str) -> float:
    """1 where the tests pass, else 0. Runs the answer: run_code()."""
    return float(run_code(program(row, answer)) == "passed")


def process_results(row: Row, answers: list[str]) -> dict[str, float]:
    """As lm-evaluation-harness asks for it."""
    return {"pass_at_1": pass_at_1(row, answers[0])}


CODE = Task("code", "pass@1", ("prompt", "entry_point", "test"), STOPS, 256, prompt, pass_at_1, runs_code=True)
