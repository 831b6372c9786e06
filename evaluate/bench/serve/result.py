"""What `specbench serve` found."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from mxspec.evaluate.result import Result, Value


class ClientsRow(Value):
    """So many clients, each of which asks for one text after the other; medians over the repetitions."""

    clients: int
    engine_tokens_per_second: float  # in the same process
    server_tokens_per_second: float
    ratio: float  # of the server over the engine, by pairs
    trials_engine_tokens_per_second: tuple[float, ...]
    trials_server_tokens_per_second: tuple[float, ...]


class Joining(Value):
    """A long prompt that comes while eight texts are written, without drafting."""

    prompt_tokens: int
    before_seconds: float  # 95th percentile of the time to a text's next token
    during_seconds: float  # likewise, until the one that joined has its first token
    ratio: float
    first_token_seconds: float  # of the one that joined
    trials_before: tuple[float, ...]
    trials_during: tuple[float, ...]
    trials_first_token: tuple[float, ...]


class ServeResult(Result):
    """The server beside the engine."""

    bundle: str
    threads: int
    new_tokens: int
    ready_seconds: float  # from the start of the process to its first answer that it is ready
    trials_ready: tuple[float, ...]
    rows: tuple[ClientsRow, ...]
    joining: Joining

    def tables(self) -> Sequence[Table]:
        return [clients_table(self), single_figures(self)]


def clients_table(result: ServeResult) -> Table:
    table = Table(
        "clients",
        "engine, tok/s",
        "server, tok/s",
        "server over engine",
        title=f"{result.bundle}, {result.threads} threads; texts of {result.new_tokens:,} tokens, greedy",
        title_justify="left",
    )
    for row in result.rows:
        table.add_row(
            str(row.clients),
            f"{row.engine_tokens_per_second:.1f}",
            f"{row.server_tokens_per_second:.1f}",
            f"{row.ratio:.3f}",
        )
    return table


def single_figures(result: ServeResult) -> Table:
    """What a start takes, and what a long prompt does to others."""
    joining = result.joining
    table = Table("", "")
    table.add_row("from the start to ready", f"{result.ready_seconds:.2f} s")
    table.add_row(
        f"next token of eight texts, 95 %, while {joining.prompt_tokens:,} tokens join",
        f"{joining.during_seconds * 1e3:.0f} ms after {joining.before_seconds * 1e3:.0f} ms, {joining.ratio:.2f} x",
    )
    table.add_row("first token of the one that joins", f"{joining.first_token_seconds * 1e3:,.0f} ms")
    return table
