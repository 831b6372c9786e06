"""Write the tables and pictures of the documents from the records, so that no figure there is typed by hand.

    python bench/tables.py           # rewrite tables and pictures
    python bench/tables.py --check   # exit with 1 where one is not what the records say

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; TABLES says which records make it. A picture stands
between `<!-- picture: NAME -->` and `<!-- end -->`, as a link to docs/images/bench/NAME.svg; PICTURES says which record
makes it, and which of that one's pictures it is.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mxspec.evaluate.bench.batch.result import BatchResult
from mxspec.evaluate.bench.columns.result import ColumnsResult
from mxspec.evaluate.bench.model.result import ModelResult
from mxspec.evaluate.bench.ops.result import OpsResult
from mxspec.evaluate.bench.plots.draw import pictures_of
from mxspec.evaluate.bench.plots.style import save
from mxspec.evaluate.bench.profile.result import ProfileResult
from mxspec.evaluate.bench.read_ceiling import PairedTimes, Quartiles
from mxspec.evaluate.bench.records import Record
from mxspec.evaluate.bench.serve.result import ServeResult
from mxspec.evaluate.bench.speculate.result import SpeculateResult, Turns
from mxspec.evaluate.result import Result

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "bench" / "records"  # those that depend on the machine in a folder for each instruction set
ROWS = (1, 2, 4, 8, 16, 128)  # of the products in a table
sys.path.insert(0, str(ROOT / "bench"))

from llama_cpp.result import SpeculativeResult  # noqa: E402  # of this folder, which is no package
from llama_cpp.serving import ServingResult  # noqa: E402
from old_records import read_result  # noqa: E402
from serve_load import by_quarters  # noqa: E402

Found = TypeVar("Found", bound=Result)
DOCUMENTS = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("performance", "benchmarks", "serve")))
DRAWN = ROOT / "docs" / "images" / "bench"


def record(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text())
    return found


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def source(*records: dict[str, Any]) -> str:
    """Where the figures come from: commands, machine, commit."""
    first = records[0]
    instructions = first["machine"].get("instruction_set")  # the oldest records do not say
    cpu = first["machine"]["cpu"] + (f" ({instructions})" if instructions else "")
    machine = f"{cpu}, {first['machine']['cores']} cores"
    commands = "; ".join(f"`{r['command']}`" for r in records)
    return f"\n\nFrom {commands} on {machine}, commit {first['commit']}."


def read(name: str, kind: type[Found]) -> tuple[Found, str]:
    """A record's result, and where it comes from."""
    found = record(name)
    return read_result(kind, found["result"]), source(found)


def spread(median: str, quartiles: Quartiles, unit: float) -> str:
    """`142 ± 4`: half of what the middle half of the trials spans; records of before it was noted have none."""
    low, high = quartiles
    if math.isnan(low):
        return median
    digits = len(median.partition(".")[2])
    return f"{median} ± {(high - low) / 2 * unit:.{digits}f}"


SPREAD = "\n\n± is half of what the middle half of the trials spans."


def spread_of(found: Sequence[PairedTimes]) -> str:
    return "" if math.isnan(found[0].seconds_quartiles[0]) else SPREAD


def accuracy() -> str:
    how = {
        "accuracy_e3m2": "to nearest",
        "accuracy_e2m3": "to nearest",
        "accuracy_e3m2_gptq": "gptq",
        "accuracy_e2m3_gptq": "gptq",
        "accuracy_e2m1_gptq": "gptq",
        "accuracy_budget": "gptq, formats chosen for a ratio of 1.005",
        "accuracy_e2m3_int8": "to nearest, int8 rows",
    }
    records = [record(name) for name in how]
    rows = [
        [
            f"{r['result']['format']}, {rounded}",
            f"{r['result']['tokens']:,}",
            f"{r['result']['baseline_perplexity']:.3f}",
            f"{r['result']['target_perplexity']:.3f}",
            f"{r['result']['ratio']:.4f}",
            f"{r['result']['mean_kl_divergence']:.5f}",
            f"{r['result']['same_top_share']:.1%}",
        ]
        for rounded, r in zip(how.values(), records, strict=True)
    ]
    header = ["format, rounding", "tokens", "perplexity, fp16", "packed", "ratio", "KL (nats)", "same top token"]
    return markdown(header, rows) + source(*records)


def ops(isa: str) -> str:
    result, where = read(f"{isa}/ops", OpsResult)
    products = [p for p in result.products if p.isa == isa]
    counts = [m for m in ROWS if any(p.rows == m for p in products)]
    lines: dict[tuple[str, str], dict[int, str]] = {}
    for p in products:
        microseconds = spread(f"{p.seconds * 1e6:.0f}", p.seconds_quartiles, 1e6)
        line = lines.setdefault((p.format, p.activations), {})
        line[p.rows] = f"{microseconds} ({p.share_of_read:.0%})"
    rows = [[*names, *(line[m] for m in counts)] for names, line in lines.items()]
    plain = f"\n\nA plain read gives {result.read_bytes_per_second / 1e9:.1f} GB/s."
    header = ["us a call (of a read)", "activations", *(f"{m} row{'s' * (m > 1)}" for m in counts)]
    return markdown(header, rows) + plain + spread_of(products) + where


def attention(isa: str) -> str:
    result, where = read(f"{isa}/ops", OpsResult)
    calls = [a for a in result.attention if a.isa == isa]
    rows = [
        [
            f"{a.rows} after {a.cached:,} cached",
            spread(f"{a.seconds * 1e6:.0f}", a.seconds_quartiles, 1e6),
            spread(f"{a.over_read:.2f}", a.over_read_quartiles, 1),
        ]
        for a in calls
    ]
    return markdown(["rows", "us a call", "over reading the cache"], rows) + spread_of(calls) + where


def model(isa: str, name: str = "model_tinyllama") -> str:
    result, where = read(f"{isa}/{name}", ModelResult)
    rows = [
        [
            f"{c.tokens} after {c.cached:,} cached",
            spread(f"{c.seconds * 1e3:.2f}", c.seconds_quartiles, 1e3),
            f"{c.tokens_per_second:.1f}",
            f"{c.bytes_per_second / 1e9:.1f}",
            f"{c.share_of_read:.0%}",
            f"{c.over_one_token:.2f}",
        ]
        for c in result.calls
    ]
    header = ["tokens a call", "ms", "tok/s", "GB/s", "of a read", "over one token"]
    return markdown(header, rows) + spread_of(result.calls) + where


def profile(isa: str) -> str:
    result, where = read(f"{isa}/profile_tinyllama", ProfileResult)
    calls = result.calls
    rows = []
    for i, line in enumerate(calls[0].lines):
        parts = [c.lines[i] for c in calls]
        cells = [f"{part.seconds * 1e6:,.0f} ({part.share:.1%})" for part in parts]
        rows.append([line.name, str(line.nodes or ""), *cells])
    nodes = str(calls[0].nodes)
    rows.append(["all", nodes, *(f"{c.profiled_seconds * 1e6:,.0f}" for c in calls)])
    rows.append(["without the profiler", nodes, *(f"{c.seconds * 1e6:,.0f}" for c in calls)])
    reads = [f"{c.ideal_seconds * 1e6:,.0f} ({c.read_bytes / c.ideal_seconds / 1e9:.1f} GB/s)" for c in calls]
    rows.append(["reading alone", "", *reads])
    header = ["us a call (share)", "nodes", *(f"{c.tokens} after {c.cached:,} cached" for c in calls)]
    return markdown(header, rows) + where


def llama_cpp(isa: str) -> str:
    found = record(f"{isa}/llama_cpp")
    points = found["result"]["points"]
    runners = list(points[0]["tokens_per_second"])
    rows = [[p["point"], *(rate(p, runner) for runner in runners)] for p in points]
    return markdown(["tok/s (over the peer)", *runners], rows) + source(found)


def speculative(isa: str) -> str:
    result, where = read(f"{isa}/llama_cpp_speculative", SpeculativeResult)
    what = (
        f"\n\nGreedy, {result.prompts} prompts of {result.prompt_tokens} tokens, {result.new_tokens} new ones, "
        f"{result.threads} threads. Perplexity is of {result.perplexity_tokens:,} tokens, the second halves of windows "
        "of 512, over that of the same program's 16-bit target."
    )
    return markdown(result.header, result.lines) + what + where


def serve(isa: str) -> str:
    result, where = read(f"{isa}/serve_grown", ServeResult)
    joining = result.joining
    rows = [
        [str(r.clients), f"{r.engine_tokens_per_second:.1f}", f"{r.server_tokens_per_second:.1f}", f"{r.ratio:.3f}"]
        for r in result.rows
    ]
    what = (
        f"\n\nTexts of {result.new_tokens} tokens, {result.threads} threads; the server is ready "
        f"{result.ready_seconds:.1f} s after its start. While {joining.prompt_tokens:,} tokens join eight texts, the "
        f"95th percentile of the time to a text's next token is {joining.during_seconds * 1e3:.0f} ms, "
        f"{joining.before_seconds * 1e3:.0f} ms before ({joining.ratio:.2f} x); the one that joins has its first "
        f"token after {joining.first_token_seconds:.2f} s."
    )
    return markdown(["clients", "engine, tok/s", "server, tok/s", "server over engine"], rows) + what + where


def serving(isa: str) -> str:
    result, where = read(f"{isa}/llama_cpp_serving", ServingResult)
    what = (
        f"\n\n{result.clients} clients, {result.answers} greedy texts of each one after the other, "
        f"{result.new_tokens} tokens after {result.prompt_tokens}, {result.threads} threads."
    )
    return markdown(result.header, result.lines) + what + where


def rate(point: dict[str, Any], runner: str) -> str:
    """Tokens a second, and of ours how many times the peers'."""
    over = ", ".join(f"{speedup:.2f} x" for speedup in point["speedup"].get(runner, {}).values())
    return f"{point['tokens_per_second'][runner]:.1f}" + (f" ({over})" if over else "")


def speculate(name: str, drafter: str = "model") -> str:
    result, where = read(name, SpeculateResult)
    of_drafter = result.drafters[drafter]
    rows = [
        [
            str(r.k),
            f"{r.acceptance:.3f}",
            f"{r.tokens_per_round:.2f}",
            f"{r.v:.2f}",
            f"{r.speedup:.2f}",
            f"{r.predicted:.2f}",
            f"{r.outside_models:.1%}",
        ]
        for r in of_drafter.rows
    ]
    auto = of_drafter.auto
    if auto is not None:  # not in records of before K could be chosen by cost
        drafted, measured = f"auto ({auto.drafted_per_round:.1f})", f"{auto.speedup:.2f}"
        shares = f"{auto.acceptance:.3f}", f"{auto.tokens_per_round:.2f}"
        rows.append([drafted, *shares, "", measured, "", f"{auto.outside_models:.1%}"])
    header = ["K", "acceptance", "tokens a round", "v", "speedup", "predicted", "outside the models"]
    return markdown(header, rows) + encoded(result) + turns(result.turns) + where


def encoded(result: SpeculateResult) -> str:
    """What the encoder of a model that has one takes."""
    found = result.encoded
    if found is None:
        return ""
    return (
        f"\n\nThe encoder reads a source of {found.source_tokens} tokens in {found.seconds:.2f} s, {found.share:.0%} "
        "of a plain answer of 128 tokens."
    )


def exact_answers(isa: str) -> str:
    found = record(f"{isa}/exact_answers")
    rows = [
        [row["way"], f"{row['exact']:.1%}", f"{row['tokens_a_call']:.2f}", f"{row['tokens_per_second']:,.0f}",
         f"{row['speedup']:.2f}"]
        for row in found["result"]["rows"]
    ]  # fmt: skip
    header = ["", "right", "tokens a call", "tok/s", "over plain"]
    return markdown(header, rows) + source(found)


def columns(isa: str, name: str = "columns_grown") -> str:
    result, where = read(f"{isa}/{name}", ColumnsResult)
    rows = [
        [
            c.column,
            f"{c.tokens_per_second:.1f}",
            f"{c.over_first:.2f}",
            f"{c.first_token_seconds.median * 1e3:.0f}",
            " / ".join(f"{seconds * 1e3:.0f}" for seconds in (c.token_seconds.median, c.token_seconds.p90)),
            f"{c.answer_seconds.median:.1f}",
            f"{c.tokens_per_round:.2f}",
            f"{c.share_of_read:.0%}",
        ]
        for c in result.columns
    ]
    header = [
        f"{f'T = {result.temperature:g}' if result.temperature else 'greedy'}, K = {result.k}",
        "tok/s",
        f"over {result.columns[0].column}",
        "first token, ms",
        "a token, ms: median / 90 %",
        "128 tokens, s",
        "tokens a round",
        "of a read",
    ]
    answers, read_speed = len(result.columns[0].trials), result.read_bytes_per_second / 1e9
    same = (
        ""
        if result.temperature
        else f"{result.same_texts} of {answers} answers are the same with and without speculation. "
    )
    ceiling = f"A plain read of the packed weights gave {read_speed:.1f} GB/s in the same minutes."
    return markdown(header, rows) + "\n\n" + same + ceiling + where


def batch(isa: str) -> str:
    result, where = read(f"{isa}/batch_tinyllama", BatchResult)
    rows = [
        [
            str(r.texts),
            f"{r.tokens_per_second:.1f}",
            f"{r.over_one_text:.2f}",
            f"{r.of_what_the_call_allows:.0%}",
            f"{r.outside_models:.1%} / {r.outside_models_sampled:.1%}",
            f"{r.tokens_per_second_by_k[str(r.best_k)]:.1f} (K = {r.best_k})",
            f"{r.tokens_per_second_by_k['auto']:.1f}",
            f"{r.by_load_over_best_k:.2f} / {r.by_load_over_plain:.2f}",
        ]
        for r in result.rows
    ]
    header = [
        "texts",
        "tok/s",
        "over one text",
        "of what the call allows",
        "outside the models, greedy / sampled",
        "best fixed K",
        "K by load",
        "over the best / over K = 0",
    ]
    return markdown(header, rows) + more_of_batch(result) + where


def more_of_batch(result: BatchResult) -> str:
    """What does not depend on the number of texts."""
    turn, shaping = result.second_turn, result.shaping
    first, more = turn.tokens
    return (
        f"\n\nOne text takes {result.rows[0].time_over_plain_loop:.3f} x as long through the engine as in a bare "
        f"loop over calls. The first token of a second turn, {more} tokens after {first:,}, comes after "
        f"{turn.ratio:.3f} of the time that reading all again takes ({turn.seconds * 1e3:.0f} ms). Shaping a row "
        f"of {shaping.vocabulary:,} entries to a nucleus of about {shaping.nucleus:,} takes "
        f"{shaping.seconds_a_row * 1e6:.0f} us, for eight texts {shaping.share_of_a_step:.1%} of a step."
    )


def soak() -> str:
    found = record("soak")
    r = found["result"]
    megabytes = ", ".join(f"{size / 1e6:.0f}" for size in r["anonymous_bytes_after_each_round"])
    header = ["requests", "whole", "cancelled", "refused", "lost", "wrong", "anonymous memory over time, MB"]
    row = [*(str(r[name]) for name in ("asked", "whole", "cancelled", "refused", "lost", "wrong")), megabytes]
    return markdown(header, [row]) + source(found)


def serve_load(isa: str) -> str:
    found = record(f"{isa}/serve_load")
    r = found["result"]
    names = ("requests", "whole", "cancelled", "malformed", "stuck", "wrong")
    memory = ", ".join(f"{size / 1e6:.0f}" for size in by_quarters(r["anonymous_bytes"]))
    header = [*names, "greedy ones compared", "sampled ones", "anonymous memory at each quarter, MB"]
    row = [*(f"{r[name]:,}" for name in (*names, "compared_greedy", "compared_sampled")), memory]
    return markdown(header, [row]) + source(found)


def turns(found: Turns | None) -> str:
    """What target and draft cost when they alternate; nothing for records of before this was measured."""
    if found is None:
        return ""
    return f"\n\nA step of the target and one of the draft take {found.over_alone:.2f} x as long alternating as alone."


def compiling() -> str:
    found = [record(name) for name in ("compile_7b", "compile_13b", "compile_7b_gptq")]
    header = [
        "shape",
        "million weights",
        "seconds",
        "of which export",
        "rounding",
        "packing, M weights/s",
        "anonymous memory",
        "of a cgroup of",
    ]
    return markdown(header, [compiled(each["result"]) for each in found]) + extrapolated(found[-1]) + source(*found)


def compiled(r: dict[str, Any]) -> list[str]:
    stages = r["stage_seconds"]
    cut = "" if r["gptq_tokens"] is None else f", {r['layers']} layers, gptq"
    return [
        r["shape"] + cut,
        f"{r['weights'] / 1e6:,.0f}",
        f"{r['seconds']:.0f}",
        f"{stages['export target']:.0f}",
        f"{stages['round target']:.0f}" if "round target" in stages else "",
        f"{r['weights_per_second'] / 1e6:,.0f}",
        f"{r['anonymous_bytes'] / 1e6:,.0f} MB",
        f"{r['cgroup_bytes'] / 1e6:,.0f} MB",
    ]


def extrapolated(found: dict[str, Any]) -> str:
    r = found["result"]
    return (
        f"\n\nRounding on {r['gptq_tokens']:,} tokens would take at most {r['rounding_seconds_of_whole'] / 60:.0f} "
        "minutes for all layers of that shape; the time grows with the layers, the memory does not."
    )


def codec() -> str:
    found = record("avx512vnni/codec")
    rows = [
        [f"{c['isa']}, {c['format']}", c["source"], f"{c['weights_per_s'] / 1e6:,.0f}"]
        for c in found["result"]["speeds"]
        if c["source"] == "bfloat16"
    ]
    return markdown(["codec", "from", "million weights/s"], rows) + source(found)


BY_MACHINE: dict[str, Callable[[str], str]] = {
    "ops": ops,
    "attention": attention,
    "model": model,
    "model_e2m3_int8": lambda isa: model(isa, "model_tinyllama_e2m3_int8"),
    "profile": profile,
    "llama_cpp": llama_cpp,
    "speculative": speculative,
    "serve": serve,
    "serving": serving,
    "serve_load": serve_load,
    "batch": batch,
    "columns": columns,
    "columns_sampled": lambda isa: columns(isa, "columns_grown_sampled"),
    "speculate_grown": lambda isa: speculate(f"{isa}/speculate_grown"),
    "speculate_t5_xl": lambda isa: speculate(f"{isa}/speculate_t5_xl"),
    "exact_answers": exact_answers,
    "speculate_demo": lambda isa: speculate(f"{isa}/speculate_demo"),
    "speculate_tinyllama": lambda isa: speculate(f"{isa}/speculate_tinyllama"),
}
MACHINES = ("avx2", "avx512vnni", "avx512vbmi")
TABLES: dict[str, Callable[[], str]] = {
    "accuracy": accuracy,
    "codec": codec,
    "compile": compiling,
    "soak": soak,
    **{f"{name}_{isa}": partial(table, isa) for name, table in BY_MACHINE.items() for isa in MACHINES},
}


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture of a record, and what a reader reads who does not see it."""

    record: str
    kind: type[Result]
    name: str
    shows: str

    def draw(self, path: Path) -> None:
        """As an SVG file."""
        found = record(self.record)
        result = read_result(self.kind, found["result"])
        known = Record(path.name, found["command"], found["commit"], found["machine"], found["versions"], result)
        save(path, known, pictures_of(result)[self.name], ("svg",))


# A record that the README or docs/benchmarks.md shows gets its line here, and `<!-- picture: NAME -->` there.
PICTURES: dict[str, Picture] = {
    "columns": Picture("avx512vbmi/columns_grown", ColumnsResult, "columns", "Tokens a second of the three columns"),
    "speculate_grown_speedup": Picture(
        "avx512vbmi/speculate_grown", SpeculateResult, "speedup", "Speedup over K, measured and by the formula"
    ),
    "speculate_tinyllama_speedup": Picture(
        "avx2/speculate_tinyllama", SpeculateResult, "speedup", "Speedup over K, measured and by the formula"
    ),
    "speculate_demo_speedup": Picture(
        "avx2/speculate_demo", SpeculateResult, "speedup", "Speedup over K, measured and by the formula"
    ),
}


def render(text: str, document: Path) -> str:
    """The text with every table made anew, and links to its pictures."""

    def replace(match: re.Match[str]) -> str:
        kind, name = match[1], match[2]
        return f"<!-- {kind}: {name} -->\n{TABLES[name]() if kind == 'table' else link(name, document)}\n<!-- end -->"

    return re.sub(r"<!-- (table|picture): (\w+) -->\n.*?<!-- end -->", replace, text, flags=re.DOTALL)


def link(name: str, document: Path) -> str:
    path = (DRAWN / f"{name}.svg").relative_to(document.parent)
    return f"![{PICTURES[name].shows}]({path.as_posix()})"


def stale_pictures(shown: Sequence[str], check: bool) -> bool:
    """Draw the pictures that the documents show; whether one was not what its record says, or is shown nowhere."""
    stale = False
    with tempfile.TemporaryDirectory() as folder:
        for name in shown:
            made, kept = Path(folder) / f"{name}.svg", DRAWN / f"{name}.svg"
            PICTURES[name].draw(made)
            if not kept.exists() or kept.read_bytes() != made.read_bytes():
                stale = True
                if not check:
                    DRAWN.mkdir(parents=True, exist_ok=True)
                    kept.write_bytes(made.read_bytes())
    for path in DRAWN.glob("*.svg"):
        if path.stem not in shown:
            stale = True
            if not check:
                path.unlink()
    return stale


def main() -> int:
    check, stale = "--check" in sys.argv[1:], False
    shown: list[str] = []
    for document in DOCUMENTS:
        text = document.read_text()
        made = render(text, document)
        shown += re.findall(r"<!-- picture: (\w+) -->", made)
        stale |= made != text
        if not check:
            document.write_text(made)
    stale |= stale_pictures(shown, check)
    return int(check and stale)


if __name__ == "__main__":
    sys.exit(main())
