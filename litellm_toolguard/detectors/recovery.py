"""When does a tool work again? One answer for all streaks of failures and denials."""

from __future__ import annotations

from litellm_toolguard.evidence import JudgedExchange, JudgedRound
from litellm_toolguard.streaks import Streaks


def recovered_tools(judged: JudgedRound, streaks: Streaks) -> frozenset[str]:
    """The tools whose failures are over: one of their calls in this round succeeded, returned an unclear text that is
    not the text of the streak, or was rejected with words of the user, who is then steering it."""
    counted: dict[str, set[str | bytes]] = {}
    for streak in streaks.values():
        counted.setdefault(streak.tool, set()).update(streak.signatures)
    return frozenset(exchange.tool for exchange in judged.exchanges if works(exchange, counted.get(exchange.tool)))


def works(exchange: JudgedExchange, counted: set[str | bytes] | None) -> bool:
    """Whether the exchange shows that its tool works.

    Args:
        exchange: the exchange.
        counted: what the streaks' members ended in; None where there is no streak.
    """
    outcome = exchange.outcome
    if outcome.kind == "succeeded" or exchange.steered:
        return True
    if outcome.kind != "unclear":
        return False
    return counted is None or exchange.traces.error not in counted
