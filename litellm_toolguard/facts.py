"""What the guard remembers between requests, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """Samples of the model that were held back at one position of a conversation, so that no history holds them.

    Args:
        instance: identity of the streak, or digest of the key, that they count for.
        samples: how many were held back at this position, at least 1.

    Raises:
        ValueError: `samples` is below 1.
    """

    instance: bytes
    samples: int

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError("a block stands for one sample or more")
