"""The settings of a request, one declaration each. To add one, add its field here, and act on it.

From these fields come those of Request, the keys of batch jobs, the options of commands, the fields of the server's
object `mxspec`, and their names at the top of a request of other servers. Sampling parameters are declared in
formats/sampling.py.
"""

# ruff: noqa: RUF009  # the calls make fields

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from mxspec.formats.sampling import PARAMETERS, SamplingParameters
from mxspec.runtime import drafters, verifiers

if TYPE_CHECKING:
    from mxspec.runtime.drafters.drafter import Drafter, ProposalKind
    from mxspec.runtime.sampling.settings import EarlyStopping

K = int | Literal["auto"]
TypedControlTokens = Literal["control", "text"]
Kind = Literal["integer", "number", "flag", "choice", "k", "early_stopping", "texts", "token_ids"]
CHAT, LENGTH, SAMPLING, GRAMMAR = "Chat", "Length", "Sampling (default: what the bundle says)", "Grammar"
SPEED, BEAMS, OUTPUT = "Speculation and speed", "Beam search", "Output"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of a setting: `group` is the section of --help that has its option; empty: it has no option.

    `low` is the lowest value of a whole number. `served`: the server has it as `mxspec.NAME`. `vllm`: its name at
    the top of a request in vLLM and llama.cpp.
    """

    kind: Kind
    group: str = ""
    help: str = ""
    choices: Sequence[str] = ()
    low: int | None = None
    served: bool = False
    vllm: str = ""


def _setting(kind: Kind, default: Any, **known: Any) -> Any:
    return field(default=default, metadata={"setting": Setting(kind, **known)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings(SamplingParameters[None]):
    """How a prompt is continued; None stands for the bundle's default."""

    typed_control_tokens: TypedControlTokens = _setting(
        "choice",
        "control",
        group=CHAT,
        choices=("control", "text"),
        help="What a control token in a message, such as <|im_end|>, is: the control token, as in transformers, or "
        "plain text.  [default: control]",
    )
    max_new_tokens: int = _setting(
        "integer",
        128,
        low=1,
        group=LENGTH,
        help="Maximum number of new tokens.  [default: all that the context holds]",
    )
    min_new_tokens: int = _setting(
        "integer",
        0,
        low=0,
        group=LENGTH,
        help="Minimum number of new tokens; the text does not end before.  [default: 0]",
        served=True,
        vllm="min_tokens",
    )
    stop: str | Sequence[str] = _setting(
        "texts", (), group=LENGTH, help="End the answer before this text. May be given several times."
    )
    stop_token_ids: Sequence[int] = _setting(
        "token_ids",
        (),
        help="Tokens that end the text, as the end of text does.",
        served=True,
        vllm="stop_token_ids",
    )
    ignore_eos: bool = _setting(
        "flag",
        False,
        group=LENGTH,
        help="Continue after an end-of-text token.",
        served=True,
        vllm="ignore_eos",
    )
    n: int = _setting("integer", 1, low=1, group=SAMPLING, help="Number of samples to write.  [default: 1]")
    best_of: int | None = _setting(
        "integer",
        None,
        group=SAMPLING,
        help="Number of samples to write, of which the likeliest are kept.  [default: n]",
    )
    beams: int = _setting(
        "integer",
        1,
        low=1,
        group=BEAMS,
        help="Number of beams of a beam search; the n best texts are written.  [default: 1, no search]",
        served=True,
    )
    length_penalty: float = _setting(
        "number",
        1.0,
        group=BEAMS,
        help="Length penalty of a beam search: above 0 favours long texts, below 0 short.  [default: 1]",
        served=True,
    )
    early_stopping: EarlyStopping = _setting(
        "early_stopping",
        False,
        group=BEAMS,
        help="When a beam search ends. true: with the first finished texts; false: when no beam is better; never: when "
        "no beam can get better.  [default: false]",
        served=True,
    )
    draft_beams: int | None = _setting(
        "integer",
        None,
        group=BEAMS,
        help="Number of beams of the draft's own search, with --k.  [default: twice the number of beams]",
        served=True,
    )
    k: K | None = _setting(
        "k",
        None,
        group=SPEED,
        help="Number of tokens drafted in a round; auto: by measured cost. Beam search drafts only by a number.  "
        "[default: auto if it changes no text, else 4; 0 with --beams]",
        served=True,
    )
    drafter: str | Drafter | None = _setting(
        "choice",
        None,
        group=SPEED,
        choices=drafters.NAMES,
        help="Method that drafts tokens.  [default: model, or suffix in a bundle without a draft]",
        served=True,
    )
    verifier: str | None = _setting(
        "choice",
        None,
        group=SPEED,
        choices=("auto", *verifiers.NAMES),
        help="Rule by which drafted tokens of sampled text are accepted; with match a seed always means one text.  "
        "[default: auto]",
        served=True,
    )
    proposal: ProposalKind | None = _setting(
        "choice",
        None,
        group=SPEED,
        choices=("sampled", "greedy"),
        help="Whether drafted tokens are sampled, or the draft's likeliest.  [default: what is accepted more often]",
        served=True,
    )
    draft_temperature: float | None = _setting(
        "number",
        None,
        group=SPEED,
        help="Temperature of the draft model alone.  [default: that of the text]",
        served=True,
    )
    lenience: float = _setting(
        "number",
        1.0,
        group=SPEED,
        help="Below 1, more drafted tokens are accepted, and the text is not the target's own.  [default: 1]",
        served=True,
    )
    logprobs: int | None = _setting(
        "integer",
        None,
        low=0,
        group=OUTPUT,
        help="With --json or --prompts: log-probability of each token, and of the N likeliest tokens in its place.",
    )
    logprobs_of: Literal["raw", "shaped"] = _setting(
        "choice",
        "raw",
        group=OUTPUT,
        choices=("raw", "shaped"),
        help="Log-probabilities of the model itself (raw), or after the sampling settings (shaped).  [default: raw]",
    )


SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {each.name: each.metadata["setting"] for each in fields(RequestSettings) if each.name not in PARAMETERS}
)
