"""What a request pays for the look-up in a ledger of ten thousand withheld results.

    python bench/ledger.py

Prints microseconds for the question whether anything is withheld, and for one look-up of the 120 keys of 60 results,
also as a ratio to reading the same keys from a dictionary.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from litellm_toolguard.canonical import digest
from litellm_toolguard.store.sqlite_ledger import SqliteLedger
from litellm_toolguard.withheld import Withheld

RESULTS = 10_000
ASKED = 60
TIMES = 500


def main() -> None:
    """Fill a ledger and measure."""
    with TemporaryDirectory() as folder:
        ledger = SqliteLedger(Path(folder) / "w.db")
        kept = [withheld(number) for number in range(RESULTS)]
        for start in range(0, RESULTS, 500):
            ledger.withhold("tenant", kept[start : start + 500])
        known = {key: True for each in kept for key in each.keys}
        asked = [key for number in range(ASKED) for key in withheld(number * 331).keys[:2]]
        empty = microseconds(ledger.is_empty)
        looked = microseconds(lambda: ledger.known("tenant", asked))
        plain = microseconds(lambda: [known.get(key) for key in asked])
    print(f"is_empty: {empty:.0f} us")
    print(f"known of {len(asked)} keys: {looked:.0f} us, {looked / plain:.0f} times a dictionary")


def withheld(number: int) -> Withheld:
    """One result, half of those asked for are in the ledger."""
    keys = tuple(digest(kind, str(number)) for kind in ("content", "call", "alone"))
    return Withheld(keys, "read_page", f"call_{number}", "content_filter", payload=b"x" * 2_000)


def microseconds(run: Callable[[], object]) -> float:
    """The median of many runs."""
    taken = []
    for _ in range(TIMES):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e6


if __name__ == "__main__":
    main()
