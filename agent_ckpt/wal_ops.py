"""What the saver does with its WAL, and what it can tell of its file's circumstances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent_ckpt.plumbing import Plumbing

if TYPE_CHECKING:
    from agent_ckpt.reports import Check, WalStatus


class WalOps(Plumbing):
    """The part of AgentSaver that is about the WAL and the file's place."""

    def wal_status(self) -> WalStatus:
        """Look at the WAL: its size, the pages that are not in the database file yet, and who reads it now.

        An SQLite before 3.51 can't look without folding what is free to be folded.

        Raises:
            BusyError: if writers hold the database's lock for longer than `busy_timeout_s`.
        """
        return self._backend.wal_status()

    async def awal_status(self) -> WalStatus:
        """`wal_status`, async."""
        return await self._backend.in_thread(self._backend.wal_status)

    def wal_truncate(self, wait_s: float = 1.0) -> WalStatus:
        """Fold the whole WAL into the database file and cut it to nothing.

        It is done by itself when nothing is written for a second; this is for the moment before a copy is made, or
        after something was deleted for good. No writer waits longer than 50 ms for it at a time, and for the work
        itself.

        Args:
            wait_s: how long to wait for readers, in seconds.

        Returns:
            The status afterwards: 0 bytes, unless somebody has written since.

        Raises:
            WalPinnedError: if readers were in the way for `wait_s`; nothing is lost, and the WAL stays.
            UsageError: with `journal="litestream"`.
        """
        return self._backend.wal_truncate(wait_s)

    async def awal_truncate(self, wait_s: float = 1.0) -> WalStatus:
        """`wal_truncate`, async."""
        return await self._backend.in_thread(lambda: self._backend.wal_truncate(wait_s))

    def doctor(self) -> Sequence[Check]:
        """Tell the circumstances of the store: SQLite's version, journal mode, file system, rights, WAL.

        Never raises for what it finds: a store that can't be opened is a check with the state "wrong".
        """
        return self._backend.doctor()

    async def adoctor(self) -> Sequence[Check]:
        """`doctor`, async."""
        return await self._backend.in_thread(self._backend.doctor)
