"""Folds and cuts the WAL when nothing is written any more, or when the reader that pinned it has gone.

A daemon thread per writer, which ends when nothing is left to do: an idle saver has none, and a program that ends
without closing its saver waits for none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

POLL_S = 0.2
SOON_S = 0.05
IDLE_S = 0.4
JOIN_S = 0.5
HURRY_S = 0.02


class Tidier:
    """Calls an attempt until it says that nothing is left to do."""

    def __init__(self, attempt: Callable[[bool], float | None], hurry: Callable[[], None]) -> None:
        """
        Args:
            attempt: given whether nothing was written for a while, tells after how many seconds to call it again,
                or None if nothing is left to do. It calls `rest` then, under the lock under which `note` is called.
            hurry: ends an attempt that is going on; one that comes just before what it ends has begun is lost.
        """
        self._attempt = attempt
        self._hurry = hurry
        self._forget()

    def _forget(self) -> None:
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._last = 0.0

    def note(self) -> None:
        """Something was written."""
        self._last = time.monotonic()
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._work, args=(self._stop,), name="agent_ckpt-wal", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The interpreter is shutting down and starts no more threads; closing folds the WAL, or the next to open.
            return
        self._thread = thread

    def rest(self) -> None:
        """Nothing is left to do; the next `note` starts anew."""
        self._thread = None

    def end(self, wait_s: float = JOIN_S) -> None:
        """End the thread, and wait a little for it; a later `note` starts another."""
        thread, stop = self._thread, self._stop
        self._forget()
        stop.set()
        self._hurry()
        if thread is None or thread is threading.current_thread():
            return
        deadline = time.monotonic() + wait_s
        while thread.is_alive() and (left := deadline - time.monotonic()) > 0:
            thread.join(min(left, HURRY_S))
            self._hurry()

    def after_in_child(self) -> None:
        """Forget the parent's thread, which does not exist here."""
        self._forget()

    def _work(self, stop: threading.Event) -> None:
        wait_s: float | None = POLL_S
        while wait_s is not None and not stop.wait(wait_s):
            wait_s = self._attempt(time.monotonic() - self._last >= IDLE_S)
