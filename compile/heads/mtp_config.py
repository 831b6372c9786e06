"""The configuration of a multi-token-prediction layer (MTP): a decoder layer of its target, in the target's checkpoint.

              reads                                       beside the token, as
    mimo      what enters the target's final norm         [state, token]
    glm4_moe  what the target's final norm gives          [token, state]

Both go on with what their own last norm gives. Sources: MiMo's modeling_mimo.py, and vLLM's classes for both, whose
targets give these states; transformers has GLM-4.5's as well.
"""

from __future__ import annotations

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, Glm4MoeConfig, Qwen2Config

from mxspec.compile.heads.head_config import HeadConfig
from mxspec.formats.errors import CheckpointError, UnsupportedModelError
from mxspec.formats.validation import shorten

_COUNTS = ("num_nextn_predict_layers", "num_mtp_layers")  # keys of configs
_OF_ALL_LAYERS = ("layer_types", "mlp_layer_types", *_COUNTS)  # keys that say nothing of this layer


class MtpConfig(HeadConfig):
    """Mixed into the configuration of the target's family: its one layer is as the target's last."""

    state_first: ClassVar[bool]
    vocab_size: int
    tap_count = 1

    @property
    def states_width(self) -> int:
        return self.hidden_size


@strict
class MimoMtpConfig(MtpConfig, Qwen2Config):  # type: ignore[misc]
    """MiMo-7B's."""

    model_type = "mxspec_mimo_mtp"
    state_first = True
    taps: list[int] | None = None


@strict
class Glm4MoeMtpConfig(MtpConfig, Glm4MoeConfig):  # type: ignore[misc]
    """GLM-4.5's, whose layer has experts."""

    model_type = "mxspec_glm4_moe_mtp"
    state_first = False
    taps: list[int] | None = None


_KINDS: dict[str, tuple[type[MtpConfig], int]] = {"mimo": (MimoMtpConfig, 0), "glm4_moe": (Glm4MoeMtpConfig, 1)}
for _kind, _ in _KINDS.values():
    AutoConfig.register(_kind.model_type, _kind)  # type: ignore[attr-defined]


def mtp_settings(settings: dict[str, Any], where: str) -> dict[str, Any]:
    """Settings of the MTP layer of a target with these settings; `where` names their file in errors.

    Raises UnsupportedModelError for a target of another family, CheckpointError for one without such a layer.
    """
    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in _KINDS:
        known = " and ".join(sorted(_KINDS))
        raise UnsupportedModelError(f"{where}: --draft mtp knows the layers of {known}, not those of {shorten(kind)}")
    count = next((settings[key] for key in _COUNTS if key in settings), None)
    if type(count) is not int or count < 1:
        raise CheckpointError(
            f"{where}: {_COUNTS[0]}: got {shorten(count)}, expected 1 or more: the checkpoint has no layer for "
            "--draft mtp"
        )
    config, after_norm = _KINDS[kind]
    layers = settings["num_hidden_layers"]
    return {
        **{key: value for key, value in settings.items() if key not in _OF_ALL_LAYERS},
        "model_type": config.model_type,  # type: ignore[attr-defined]
        "architectures": [config.__name__.removesuffix("Config")],
        "num_hidden_layers": 1,
        "first_k_dense_replace": 0,
        "tie_word_embeddings": False,
        "taps": [layers + after_norm],
    }
