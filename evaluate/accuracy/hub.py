"""Files of datasets on the hub, by the hub's own addresses: hf://datasets/OWNER/NAME/FILE."""

from __future__ import annotations

from pathlib import Path

from mxspec.formats.errors import MxspecError

HUB = "hf://"
_DATASETS = "hf://datasets/"


def fetch(address: str) -> Path:
    """Download the file unless the local cache has it, and return its path; `@REVISION` may follow NAME.

    Raises MxspecError if the address is invalid, the hub cannot be reached, or it has no such file.
    """
    owner, _, rest = address.removeprefix(_DATASETS).partition("/")
    repository, _, file = rest.partition("/")
    name, _, revision = repository.partition("@")
    if not address.startswith(_DATASETS) or not owner or not name or not file:
        raise MxspecError(f"--text {address}: expected {_DATASETS}OWNER/NAME/FILE")
    import huggingface_hub  # comes with tokenizers; imported late, because it is slow to import
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(
            huggingface_hub.hf_hub_download(f"{owner}/{name}", file, repo_type="dataset", revision=revision or None)
        )
    except (OSError, HFValidationError) as error:  # the hub's HTTP errors are OSErrors
        lines = str(error).strip().splitlines()
        raise MxspecError(
            f"--text {address}: cannot be fetched from the hub: {lines[0] if lines else type(error).__name__}"
        ) from None
