"""The table of the comparison with speculation, against figures worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.documents import tables
from bench.llama_cpp.result import Row, SpeculativeResult, Trial


def trials(
    speeds: tuple[float, ...], drafted: int = 0, accepted: int = 0, same: bool | None = None
) -> tuple[Trial, ...]:
    """Two answers of 100 tokens in each repetition, one taking three times as long as the other."""
    return tuple(
        Trial(
            prompt=prompt,
            repetition=repetition,
            tokens=100,
            seconds=200 / speed * share,
            drafted=drafted,
            accepted=accepted,
            same_text=same,
        )
        for repetition, speed in enumerate(speeds)
        for prompt, share in enumerate((0.25, 0.75))
    )


def row(program: str, target: str, draft: str | None, *args: object, ratio: float = 1.0) -> Row:
    return Row(
        program=program,
        target=target,
        weight_bytes=1,
        draft=draft,
        k=3 if draft else None,
        perplexity=9 * ratio,
        perplexity_ratio=ratio,
        trials=trials(*args),  # type: ignore[arg-type]
    )


@pytest.fixture
def result() -> SpeculativeResult:
    rows = (
        row("llama.cpp", "F16", None, (10.0, 10.0, 20.0)),
        row("llama.cpp", "F16", "demo", (20.0, 21.0, 22.0), 8, 6, True),
        row("llama.cpp", "F16", "68M", (19.0, 20.0, 21.0), 8, 6, False),
        row("llama.cpp", "Q6_K", None, (30.0, 30.0, 30.0), ratio=1.001),
        row("llama.cpp", "Q6_K", "demo", (25.0, 25.0, 25.0), 8, 6, False, ratio=1.001),
        row("mxspec", "mxfp6_e2m3", "demo", (40.0, 80.0, 60.0), 10, 7, True, ratio=1.003),
    )
    return SpeculativeResult(
        peer="p",
        threads=2,
        prompts=2,
        prompt_tokens=64,
        new_tokens=101,
        repetitions=3,
        perplexity_tokens=510,
        rows=rows,
    )


def test_a_speed_is_the_median_of_repetitions_over_all_their_prompts(result: SpeculativeResult) -> None:
    assert result.rows[0].speeds == pytest.approx((10, 10, 20))
    assert result.rows[0].tokens_per_second == pytest.approx(10)


def test_ours_are_over_the_peer_of_the_same_repetition(result: SpeculativeResult) -> None:
    assert result.rows[-1].over(result.rows[0]) == pytest.approx(4)  # of 4, 8 and 3


def test_rows_are_compared_with_the_fastest_row_of_each_target(result: SpeculativeResult) -> None:
    chosen = {name: found.draft for name, found in result.references.items()}
    assert chosen == {"F16": None, "F16 with speculation": "demo", "Q6_K at best": None}


def test_lines_say_what_was_kept_and_whether_the_text_is_the_plain_one(result: SpeculativeResult) -> None:
    (sheet,) = result.sheets()
    cells = {line[0]: line[1:] for line in sheet.lines}
    assert cells["llama.cpp F16, demo"] == ["21.0", "3", "75.0%", "6 of 6", "1.0000", "", "", ""]
    assert cells["llama.cpp Q6_K, demo"] == ["25.0", "3", "75.0%", "0 of 6", "1.0010", "", "", ""]
    assert cells["mxspec mxfp6_e2m3, demo"] == ["60.0", "3", "70.0%", "6 of 6", "1.0030", "4.00 x", "2.73 x", "2.00 x"]
    assert len(sheet.headers) == len(sheet.lines[0])


def test_a_record_makes_the_table_of_the_documents(
    result: SpeculativeResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {
        "kind": result.kind,
        "command": "compare",
        "commit": "abc",
        "machine": {"cpu": "a cpu", "instruction_set": "avx2", "cores": 2},
        "versions": {},
        "result": json.loads(result.model_dump_json()),
    }
    (tmp_path / "avx2").mkdir()
    (tmp_path / "avx2" / "llama_cpp_speculative.json").write_text(json.dumps(record))
    monkeypatch.setattr(tables, "RECORDS", tmp_path)
    made = tables.Table(("avx2/llama_cpp_speculative",)).markdown()
    assert "| mxspec mxfp6_e2m3, demo | 60.0 | 3 | 70.0% | 6 of 6 | 1.0030 | 4.00 x | 2.73 x | 2.00 x |" in made
    assert "From `compare` on a cpu (avx2), 2 cores, commit abc." in made
