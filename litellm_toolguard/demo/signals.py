"""Signals that end the demo, delivered only where no process can be lost by them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_ENDING: Final = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupted(KeyboardInterrupt):
    """A signal has asked to end. No Exception: the clients turn those into errors of their own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class Signals:
    """While the context is open, the first ending signal is noted, and raised inside `interruptible()` only.

    Everywhere else (a process is being started, or stopped) it waits for the next `interruptible()` or `check()`.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._is_interruptible = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        for number in _handled():
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A part that an ending signal may leave at any point.

        Raises:
            Interrupted: a signal has come.
        """
        self._is_interruptible = True
        try:
            self.check()
            yield
        finally:
            self._is_interruptible = False
        self.check()

    def check(self) -> None:
        """Raise the signal that has come, if any.

        Raises:
            Interrupted: a signal has come.
        """
        if self._number is not None:
            raise Interrupted(self._number)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self._number is not None:
            return
        self._number = number
        if self._is_interruptible:
            raise Interrupted(number)


def _handled() -> Iterator[signal.Signals]:
    """The ending signals of this system; one that `nohup` has switched off stays so."""
    for name in _ENDING:
        number = getattr(signal, name, None)
        if number is not None and not (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):
            yield number
