"""Code in the format of HumanEval: each row has the beginning of a function and its tests; scored by pass@1."""

from __future__ import annotations

from mxspec.evaluate.tasks.sandbox import run_code
from mxspec.evaluate.tasks.task import Row, Task

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")  # Chen et al. 2021, section 3: the function has ended


def prompt(row: Row) -> str:
    """The beginning of the function."""
    return str(row["prompt"])


def program(row: Row, answer: str) -> str:
    """The whole function, its tests, and their call."""
    return f"{row['prompt']}{answer}\n{row['test']}\ncheck({row['entry_point']})\n"


def pass_at_1(row: Row, answer: str) -> float:
    """1 if the tests pass, else 0. Runs the answer with run_code()."""
    return float(run_code(program(row, answer)) == "passed")


def process_results(row: Row, answers: list[str]) -> dict[str, float]:
    """The score of the first answer, in the harness's form."""
    return {"pass_at_1": pass_at_1(row, answers[0])}


CODE = Task("code", "pass@1", ("prompt", "entry_point", "test"), STOPS, 256, prompt, pass_at_1, runs_code=True)
