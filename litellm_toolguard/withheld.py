"""Tool results that are withheld from every provider, as values. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Withheld:
    """One tool result that is withheld, as the ledger takes it.

    Args:
        keys: digests under which it is found again: that of its content, and that of its call. Not empty.
        tool: the tool's name.
        call_id: the id of the call; empty where the dialect has none.
        cause: what refused it, a word of `refusals.py`, or the name of a guardrail.
        category: the refusal's machine-readable category; empty where there is none.
        explanation: what the refusal said; it may quote content.
        payload: the original: JSON of `{"text": .., "opaque": ..}`, UTF-8.
    """

    keys: tuple[bytes, ...]
    tool: str
    call_id: str
    cause: str
    category: str = ""
    explanation: str = field(default="", repr=False)
    payload: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """One withheld result, as the ledger knows it.

    Args:
        id: twelve hex digits, by which people name it.
        tool: the tool's name.
        call_id: the id of the call.
        cause: what refused it.
        category: the refusal's category.
        size: bytes of the original.
        withheld_at: when it was first withheld, seconds since 1970.
        released_at: when an operator released it; None while it is withheld.
        has_payload: whether the original is still kept.
    """

    id: str
    tool: str
    call_id: str
    cause: str
    category: str
    size: int
    withheld_at: float
    released_at: float | None
    has_payload: bool


@dataclass(frozen=True, slots=True)
class Original:
    """An entry with what is kept of it.

    Args:
        entry: the entry.
        explanation: what the refusal said.
        payload: the original; None where it expired.
    """

    entry: Entry
    explanation: str = field(repr=False)
    payload: bytes | None = field(repr=False)
