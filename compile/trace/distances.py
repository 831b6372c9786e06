"""T5's bias by distance: a table for all distances, from which a call adds each score's entry."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Buckets = Callable[[Tensor], Tensor]  # from distances, key position − query position, to rows of a table


class DistanceBias(nn.Module):
    """float32[heads, D]: the bias of each distance from `first` on; beyond both ends it is constant.

    The model's `buckets` of the distances from `furthest_back` to `furthest_ahead` are looked up in its table [buckets,
    heads]; the ends are where the buckets no longer change.
    """

    def __init__(self, weight: nn.Parameter, buckets: Buckets, furthest_back: int, furthest_ahead: int) -> None:
        super().__init__()
        rows = buckets(torch.arange(-furthest_back, furthest_ahead + 1))
        changes = torch.nonzero(rows[1:] != rows[:-1]).flatten().tolist()
        begin, end = (changes[0], changes[-1] + 2) if changes else (0, 1)
        self.first = begin - furthest_back
        self.weight = weight
        self.rows = nn.Buffer(rows[begin:end].contiguous())

    def forward(self) -> Tensor:
        return nn.functional.embedding(self.rows, self.weight).transpose(0, 1)
