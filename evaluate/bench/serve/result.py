"""What `specbench serve` found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from mxspec.evaluate.result import Cell, Column, Result, Sheet, Value


class ClientsRow(Value):
    """Medians over the repetitions, for clients that each request one text after another."""

    clients: int
    engine_tokens_per_second: float  # the engine in this process
    server_tokens_per_second: float
    ratio: float  # server over engine, by pairs
    trials_engine_tokens_per_second: tuple[float, ...]
    trials_server_tokens_per_second: tuple[float, ...]


class Joining(Value):
    """A long prompt that arrives while eight texts are written without drafting."""

    prompt_tokens: int
    before_seconds: float  # 95th percentile of the time to a text's next token
    during_seconds: float  # the same, from the long prompt's arrival to its first token
    ratio: float
    first_token_seconds: float  # of the long prompt
    trials_before: tuple[float, ...]
    trials_during: tuple[float, ...]
    trials_first_token: tuple[float, ...]


class ServeResult(Result):
    """The server beside the engine."""

    kind: ClassVar[str] = "serve"
    faster_if_more = ("engine_tokens_per_second", "server_tokens_per_second")
    faster_if_less = ("before", "during", "first_token", "ready")

    bundle: str
    threads: int
    new_tokens: int
    ready_seconds: float  # from the start of the process until /health says that it is ready
    trials_ready: tuple[float, ...]
    rows: tuple[ClientsRow, ...]
    joining: Joining

    def sheets(self) -> Sequence[Sheet]:
        joining = self.joining
        columns: list[tuple[Column, Callable[[ClientsRow], Cell]]] = [
            (Column("clients"), lambda row: f"{row.clients}"),
            (Column("engine, tok/s", ".1f"), lambda row: row.engine_tokens_per_second),
            (Column("server, tok/s", ".1f"), lambda row: row.server_tokens_per_second),
            (Column("server over engine", ".3f"), lambda row: row.ratio),
        ]
        notes = (
            f"The server is ready {self.ready_seconds:.1f} s after its start.",
            f"While {joining.prompt_tokens:,} tokens join eight texts, the 95th percentile of the time to a text's "
            f"next token is {joining.during_seconds * 1e3:.0f} ms, {joining.before_seconds * 1e3:.0f} ms before "
            f"({joining.ratio:.2f} x); the text that joins has its first token after "
            f"{joining.first_token_seconds:.2f} s.",
        )
        title = f"{self.bundle}, {self.threads} threads; greedy texts of {self.new_tokens:,} tokens"
        return [Sheet.of_rows(title, self.rows, columns, notes)]
