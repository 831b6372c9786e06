"""Whether a bundle's context holds what a benchmark is to write."""

from __future__ import annotations

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError


def require_context(bundle: Bundle, prompt_tokens: int, new_tokens: int) -> None:
    """Raises MxspecError if target or draft cannot hold prompt and answer; with an encoder, only the answer counts."""
    for name, entry in bundle.manifest.models.items():
        before = prompt_tokens if entry.encoder is None else len(bundle.manifest.tokenizer.decoder_start)
        most = entry.context_length - before
        if name != "baseline" and new_tokens > most:
            raise MxspecError(
                f"--new-tokens: got {new_tokens:,} after prompts of {before:,} tokens, but the context of the "
                f"bundle's {name} is {entry.context_length:,} tokens: expected at most {max(most, 0):,}"
            )
