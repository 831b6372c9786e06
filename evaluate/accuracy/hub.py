"""Files of datasets on the hub, by the address that the hub itself gives them: hf://datasets/OWNER/NAME/FILE."""

from __future__ import annotations

from pathlib import Path

from mxspec.formats.errors import MxspecError

HUB = "hf://"
_DATASETS = "hf://datasets/"


def fetch(address: str) -> Path:
    """The file in the local cache, downloaded where it is not there yet; `@REVISION` may follow NAME.

    Raises MxspecError for another address, and where the hub cannot be reached or has no such file.
    """
    owner, _, rest = address.removeprefix(_DATASETS).partition("/")
    repository, _, file = rest.partition("/")
    name, _, revision = repository.partition("@")
    if not address.startswith(_DATASETS) or not owner or not name or not file:
        raise MxspecError(f"--text {address}: expected {_DATASETS}OWNER/NAME/FILE")
    import huggingface_hub  # tokenizers brings it; it takes a while to import
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
