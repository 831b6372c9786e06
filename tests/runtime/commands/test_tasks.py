"""specrun --task: what the bundle's recipe has under a name comes before prompts."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from mxspec import Engine
from mxspec.runtime.commands.specrun import specrun


def run(bundle: Path, *options: object) -> Result:
    return CliRunner().invoke(specrun, [str(bundle), *map(str, options), "--max-new-tokens", "8", "--threads", "1"])


def test_a_task_stands_before_the_prompt(t5_bundle: Path) -> None:
    with Engine(t5_bundle) as engine:
        expected, plain = (engine.generate(text, max_new_tokens=8).result() for text in ("reverse: abc", "abc"))
    found = json.loads(run(t5_bundle, "abc", "--task", "reverse", "--json").stdout)
    assert found["token_ids"] == expected.token_ids != plain.token_ids
    assert found["prompt_tokens"] == len("reverse: abc") + 2  # the end of the source, and what the decoder begins with
    assert json.loads(run(t5_bundle, "abc", "--json").stdout)["token_ids"] == plain.token_ids


def test_a_task_stands_before_each_line_that_is_text(t5_bundle: Path, tmp_path: Path) -> None:
    lines, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines.write_text('{"prompt": "abc"}\n{"prompt": "reverse: abc", "key": 1}\n{"prompt": [1, 2]}\n')
    result = run(t5_bundle, "--task", "reverse", "--prompts", lines, "--out", out)
    first, second, third = map(json.loads, out.read_text().splitlines())
    with Engine(t5_bundle) as engine:
        answers = [
            engine.generate(text, max_new_tokens=8).result().token_ids
            for text in ("reverse: abc", "reverse: " * 2 + "abc")
        ]
    assert [first["token_ids"], second["token_ids"]] == answers
    assert "task: given with a prompt that is not text" in json.dumps(third)
    assert result.exit_code == 1


def test_an_unknown_task_is_refused_with_the_nearest_name(t5_bundle: Path, tiny_bundles: dict[str, Path]) -> None:
    for bundle, says in (
        (t5_bundle, "error: task: got 'revers', expected reverse (did you mean 'reverse'?)\n"),
        (tiny_bundles["near"], f"expected none, for bundle {tiny_bundles['near']} has no tasks\n"),
    ):
        result = run(bundle, "abc", "--task", "revers")
        assert (result.exit_code, result.stderr.endswith(says)) == (1, True), result.stderr
