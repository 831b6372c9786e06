"""The table of both programs' formats."""

from __future__ import annotations

from bench.llama_cpp.accuracy import AccuracyResult, Row
from mxspec.evaluate.render import markdown


def test_formats_are_shown_by_their_size() -> None:
    rows = tuple(
        Row(
            program=program,
            format=name,
            matrix_bytes=size,
            weights=1_000_000,
            ratio=1.02,
            divergence=0.01,
            same_top_share=0.95,
        )
        for program, name, size in (("mxspec", "e2m3", 781_250), ("llama.cpp", "Q4_K_M", 625_000))
    )
    result = AccuracyResult(peer="p", model="m.gguf", windows=10, peer_perplexity=12.5, perplexity=12.51, rows=rows)
    (sheet,) = result.sheets()
    shown = markdown(sheet)
    assert "m.gguf, 2,550 tokens" in shown
    assert [line.split(" |")[0] for line in shown.splitlines()[4:6]] == ["| llama.cpp Q4_K_M", "| mxspec e2m3"]
    assert "| mxspec e2m3 | 0.8 | 6.25 | 1.0200 | 0.01000 | 95.0% |" in shown
    assert "12.500 (llama.cpp) and 12.510 (mxspec)" in shown
