"""What the configurations of all drafts that read hidden states say of these states."""

from __future__ import annotations


class HeadConfig:
    """Mixed into the configuration of such a draft, beside the settings of its one layer.

    `taps` are the places in the target whose states it reads (trace/taps.py), `tap_count` of them; None until the
    target is known. `hidden_size` is the width of its own states.
    """

    hidden_size: int
    taps: list[int] | None
    tap_count: int

    @property
    def states_width(self) -> int:
        """Values of a token's state at one place."""
        raise NotImplementedError

    @property
    def states_size(self) -> int:
        """Values of a token's states at all places."""
        return self.tap_count * self.states_width
