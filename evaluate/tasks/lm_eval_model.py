"""The engine as a model of the lm-evaluation-harness. Import this file late: it imports the harness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import model_registry, register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from mxspec.evaluate.tasks.likelihoods import Likelihoods
from mxspec.formats.errors import BundleError, MxspecError, did_you_mean
from mxspec.formats.sampling import DRAWN
from mxspec.runtime.engine import SLOTS, Engine
from mxspec.runtime.models.session import Session
from mxspec.runtime.request import Request
from mxspec.runtime.text.chat import ChatTemplate
from mxspec.runtime.text.tokenizer import encode_rendered

NAME = "mxspec"
MAX_NEW_TOKENS = 256  # if a task gives no limit, as in the harness's other models
_SAMPLED = ("temperature", *DRAWN)
_KNOWN = ("until", "max_gen_toks", "do_sample", "repetition_penalty", *_SAMPLED)


class MxspecLM(TemplateLM):  # type: ignore[misc]  # the harness has no types
    """A bundle as the harness's model. It writes many answers at a time, and reads a context that choices share once.

    `slots` is the number of texts at a time, by default `batch_size` if that is a number above 1, else 8. `k` and
    `drafter` are those of Request; `k=0` writes without speculation. With `model` "baseline" the fp16 target answers.
    `seed` is the seed of the first sampled answer, `seed` + 1 that of the next. `max_batch_size` and `device` come
    from the harness and have no effect. Raises MxspecError for settings that the bundle does not support.
    """

    def __init__(
        self,
        bundle: str,
        slots: int | None = None,
        threads: int | None = None,
        k: int | Literal["auto"] | None = None,
        drafter: str | None = None,
        model: Literal["target", "baseline"] = "target",
        seed: int = 0,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        wanted = int(batch_size or 1) if str(batch_size).isdigit() else 1
        self.slots = slots or (wanted if wanted > 1 else SLOTS)
        self.engine = Engine(bundle, slots=self.slots, threads=threads, model=model)
        if self.engine.target.encoder is not None:
            self.engine.close()
            raise BundleError(f"bundle {bundle}: its models have encoders, which mxspec-eval does not support")
        self.k, self.drafter, self.seed = k, drafter, seed
        self._likelihoods = Likelihoods(Session.of(self.engine.bundle, model, self.slots))

    def close(self) -> None:
        """End the engine's thread."""
        self.engine.close()

    # --- tokens ---

    @property
    def max_length(self) -> int:
        """Tokens of the context."""
        return self.engine.target.capacity

    @property
    def eot_token_id(self) -> int:
        """The first token that ends a text."""
        ends = self.engine.bundle.manifest.tokenizer.eos_token_ids
        if not ends:
            raise BundleError(f"bundle {self.engine.bundle.path}: its tokenizer has no end-of-text token")
        return ends[0]

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context: the one that begins texts, else one that ends them."""
        begin = self.engine.bundle.manifest.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else begin

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids; special tokens are put around a text unless `add_special_tokens` is False."""
        if add_special_tokens is False:
            return encode_rendered(self.engine.tokenizer, string)
        return self.engine.encode(string)

    # --- likelihoods ---

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        found = self._likelihoods.of([(context, continuation) for _, context, continuation in requests])
        answers = [(each.logprob, each.greedy) for each in found]
        for (texts, *_tokens), answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", texts, answer)
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each whole text, in windows as long as the context."""
        windows: list[tuple[list[int], list[int]]] = []
        counts = []
        for (text,) in (request.args for request in requests):
            ids = self.tok_encode(text)
            own = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1)
            before = len(windows)
            windows += [make_disjoint_window(window) for window in own]
            counts.append(len(windows) - before)
        scores = iter(self._likelihoods.of(windows))
        totals = [sum(next(scores).logprob for _ in range(count)) for count in counts]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    # --- answers ---

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answers, in the order of the requests."""
        answers = []
        asked = enumerate(request.args for request in requests)
        written = self.engine.run(self._request(text, given, self.seed + n) for n, (text, given) in asked)
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="Running generate_until requests")
        for request, answer in zip(requests, written, strict=True):
            assert not isinstance(answer, list), "one sample each was asked for"
            answers.append(answer.text)
            self.cache_hook.add_partial("generate_until", request.args, answer.text)
            bar.update(1)
        bar.close()
        return answers

    def _request(self, context: str, settings: Mapping[str, Any], seed: int) -> Request:
        asked = dict(normalize_gen_kwargs(settings, MAX_NEW_TOKENS))
        for name in asked:
            if name not in _KNOWN:
                hint = did_you_mean(name, _KNOWN)
                raise MxspecError(f"generation_kwargs: got {name!r}, expected any of {', '.join(_KNOWN)}{hint}")
        length = asked["max_gen_toks"]
        room = self.max_length - length
        if room < 1:
            raise MxspecError(f"max_gen_toks: got {length}, expected fewer than {self.max_length}, the context")
        sampled = {name: asked[name] for name in _SAMPLED if name in asked} if asked["do_sample"] else {}
        return Request(
            prompt=(self.tok_encode(context) or [self.prefix_token_id])[-room:],
            max_new_tokens=length,
            stop=[stop for stop in asked["until"] if stop],
            k=self.k,
            drafter=self.drafter,
            repetition_penalty=asked.get("repetition_penalty"),
            seed=seed if asked["do_sample"] else None,
            **({"temperature": 1.0, **sampled} if asked["do_sample"] else {"temperature": 0.0}),
        )

    # --- chats ---

    @property
    def tokenizer_name(self) -> str:
        """The key under which the harness caches rendered requests."""
        return f"{self.engine.bundle.manifest.name}-{self.engine.bundle.manifest.tokenizer.sha256}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """A name for the bundle's only chat template."""
        if not chat_template:
            return None
        ChatTemplate.required(self.engine.bundle)
        return self.tokenizer_name

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Render a chat as text with the bundle's template."""
        template = self.engine.template or ChatTemplate.required(self.engine.bundle)
        return template.render(chat_history, add_generation_prompt=add_generation_prompt)


def register() -> None:
    """Make the model known to the harness, once."""
    if NAME not in model_registry:
        register_model(NAME)(MxspecLM)
