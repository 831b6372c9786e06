"""How to write a text, decided from its request: the drafter, K, the verifier, and what is taken as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from mxspec.formats.errors import GenerationError, did_you_mean
from mxspec.runtime.drafters import NAMES
from mxspec.runtime.drafters.drafter import Choice, Drafter, ProposalKind
from mxspec.runtime.drafters.known import why_missing
from mxspec.runtime.drafters.text_draft import TextDrafter
from mxspec.runtime.request import Request
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.settings import K
from mxspec.runtime.verifiers.measured import Measured
from mxspec.runtime.verifiers.verify import MATCH, MRS, VERIFIERS, Verifier

DEFAULT_K = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSettings:
    """How to write a text, decided and checked: the prompt is not empty and fits, and k is at most k_max.

    If an encoder reads a `source`, the prompt holds the decoder's first tokens.
    """

    prompt: list[int]
    source: tuple[int, ...] = ()
    sampling: Sampling  # with a seed
    drafter: Drafter
    k: K
    choice: Choice  # how the draft's tokens are chosen
    verifier: Verifier = MRS  # of sampled text
    lenience: float = 1.0
    max_new_tokens: int
    eos: frozenset[int]  # tokens that end the text
    measured: Measured | None = None  # receives the distributions of draft and target
    logprobs: int | None = None
    logprobs_of: Literal["raw", "shaped"] = "raw"
    cache_key: str = ""
    traced: bool = False

    @property
    def lossless(self) -> bool:
        """Whether the text is the target's own."""
        return self.lenience == 1


def choose_settings(
    request: Request,
    sampling: Sampling,
    drafters: Mapping[str, Drafter],
    k_max: int,
    measured: Measured,
    *,
    prompt: list[int],
    source: tuple[int, ...] = (),
    eos: frozenset[int] = frozenset(),
) -> ChosenSettings:
    """Take the request's choices, and the best default for the others. Raises GenerationError."""
    _check(request)
    drafter, k, verifier, proposal = _strategy(request, sampling, drafters, k_max, measured)
    return ChosenSettings(
        prompt=prompt,
        source=source,
        sampling=sampling,
        drafter=drafter,
        k=k,
        choice=Choice(sampling.greedy, proposal, verifier.matched, request.draft_temperature),
        verifier=verifier,
        lenience=request.lenience,
        max_new_tokens=request.max_new_tokens,
        eos=eos,
        measured=measured if drafter.name == "model" and proposal == "sampled" else None,
        logprobs=0 if request.logprobs is None and request.best_of is not None else request.logprobs,
        logprobs_of=request.logprobs_of,
        cache_key=request.cache_key,
        traced=request.trace,
    )


def _strategy(
    request: Request, sampling: Sampling, drafters: Mapping[str, Drafter], k_max: int, measured: Measured
) -> tuple[Drafter, K, Verifier, ProposalKind]:
    """Who guesses, how much, and which guesses are kept; only sampled text uses the verifier."""
    if request.beams > 1:
        return *_strategy_of_beams(request, drafters, k_max), MRS, "sampled"
    drafter = _drafter(request, drafters)
    if sampling.greedy:
        _check_greedy(request)
        return drafter, _k(request, drafter, k_max, "auto"), MRS, "sampled"
    verifier, proposal = _verifier(request, drafter, measured)
    k = _k(request, drafter, k_max, "auto" if verifier.matched or drafter.cheap else DEFAULT_K)
    if request.seed is not None and not verifier.matched and not (k != "auto" and drafter.repeatable):
        field, given = ("k", k) if k == "auto" else ("drafter", drafter.name)
        raise GenerationError(
            field,
            f"got {given} with a seed and verifier {verifier.name}, whose text differs from run to run; "
            "use verifier match, which gives one text for a seed, or leave the seed out",
        )
    return drafter, k, verifier, proposal


def _drafter(request: Request, drafters: Mapping[str, Drafter]) -> Drafter:
    wanted = request.drafter
    if wanted is None:
        return drafters["model" if "model" in drafters else "suffix"]
    if isinstance(wanted, Drafter):
        return wanted
    if wanted in drafters:
        return drafters[wanted]
    if wanted in NAMES:
        raise why_missing(wanted, has_draft="model" in drafters)
    raise GenerationError(
        "drafter", f"got {wanted!r}, expected one of {', '.join(NAMES)}{did_you_mean(str(wanted), NAMES)}"
    )


def _strategy_of_beams(request: Request, drafters: Mapping[str, Drafter], k_max: int) -> tuple[Drafter, K]:
    """The draft model guesses a beam search by its own search, only with an explicit k.

    With a k chosen by cost, drafting did not pay (0.995 and 1.009 of the plain speed), so "auto" drafts nothing.
    """
    asked = request.k not in (None, "auto", 0)
    if request.drafter is None:
        drafter = drafters["model" if asked and "model" in drafters else "none"]
    else:
        drafter = _drafter(request, drafters)
        if drafter not in (drafters.get("model"), drafters["none"]):
            raise GenerationError("drafter", f"got {drafter.name} with beams, expected model or none")
    _check_greedy(request)
    return drafter, _k(request, drafter, k_max, 0) if asked else 0


def _verifier(request: Request, drafter: Drafter, measured: Measured) -> tuple[Verifier, ProposalKind]:
    """The verifier that the request names; else a repeatable one if wanted, or the one that accepts most."""
    if request.verifier not in (None, "auto", *VERIFIERS):
        *names, last = "auto", *VERIFIERS
        raise GenerationError("verifier", f"got {request.verifier!r}, expected {', '.join(names)} or {last}")
    proposal: ProposalKind = request.proposal or "sampled"
    if request.verifier not in (None, "auto"):
        return VERIFIERS[request.verifier], proposal
    if request.lenience < 1:
        return MRS, proposal
    repeats = request.seed is not None and (request.k in (None, "auto") or not drafter.repeatable)
    if repeats or drafter.cheap or isinstance(drafter, TextDrafter):
        return MATCH, proposal
    verifier, best = measured.best()
    if request.proposal is None:
        return verifier, best
    return MRS if request.proposal == "greedy" else verifier, request.proposal


def _k(request: Request, drafter: Drafter, k_max: int, default: K) -> K:
    if drafter.name == "none":
        if request.k not in (None, 0):
            raise GenerationError(
                "k", f"got {request.k}, but no drafter proposes tokens; leave k out, or name a drafter"
            )
        return 0
    if request.k is None:
        return default if default == "auto" else min(default, k_max)
    if request.k == "auto":
        return "auto"
    if not isinstance(request.k, int) or isinstance(request.k, bool) or not 0 <= request.k <= k_max:
        raise GenerationError("k", f"got {request.k!r}, expected auto, or 0 to {k_max}, the k_max of the bundle")
    return request.k


def _check(request: Request) -> None:
    value = request.lenience
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise GenerationError("lenience", f"got {value!r}, expected a number above 0, up to 1 (off)")
    if value < 1 and request.verifier not in (None, "auto", *(v.name for v in VERIFIERS.values() if v.takes_lenience)):
        raise GenerationError("lenience", f"got {value}, which verifier {request.verifier} does not support; use mrs")
    if request.draft_temperature is not None:
        try:
            Sampling(temperature=request.draft_temperature)
        except GenerationError as error:
            raise GenerationError("draft_temperature", error.problem) from None
        if request.draft_temperature == 0:
            raise GenerationError("draft_temperature", "got 0, which draws nothing; take proposal greedy")
    if request.proposal is not None and request.proposal not in get_args(ProposalKind):
        raise GenerationError("proposal", f"got {request.proposal!r}, expected {' or '.join(get_args(ProposalKind))}")


def _check_greedy(request: Request) -> None:
    for name, given in (
        ("verifier", request.verifier not in (None, "auto")),
        ("proposal", request.proposal is not None),
        ("draft_temperature", request.draft_temperature is not None),
    ):
        if given:
            raise GenerationError(name, "given at temperature 0, where draft and target take the likeliest token")
