"""What the saver does with its keys: look, rotate, seal a plaintext file, unseal it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from agent_ckpt.errors import UnavailableError, UsageError
from agent_ckpt.later import Later
from agent_ckpt.plumbing import Plumbing

if TYPE_CHECKING:
    from agent_ckpt import key_work
    from agent_ckpt.key_work import KeyStatus, Progress, Rotation
else:
    key_work = Later("agent_ckpt.key_work")

_WAL_WAIT_S = 5.0


class KeyOps(Plumbing):
    """The part of AgentSaver that is about keys."""

    def _settle(self) -> tuple[bool, int]:
        """Forget what is known of threads, give free pages back, and cut the WAL, which holds frames of before.

        Returns:
            Whether the WAL could be cut, and how many free pages are left.
        """
        self._hot.clear()
        try:
            left = self._backend.give_back(_WAL_WAIT_S)
        except UnavailableError:  # others write without a pause
            left = -1
        try:
            return self._backend.wal_truncate(_WAL_WAIT_S).bytes == 0, left
        except (UnavailableError, UsageError):  # readers are in the way, or the WAL is another program's to cut
            return False, left

    def _settled(self, done: Rotation) -> Rotation:
        wal_truncated, pages_left = self._settle()
        return dataclasses.replace(done, wal_truncated=wal_truncated, pages_left=pages_left)

    def key_status(self) -> KeyStatus:
        """What the file is sealed with, counted by key; works without a key, too."""
        return self._run_as_stored(key_work.status(self._sealing))

    async def akey_status(self) -> KeyStatus:
        """`key_status`, async."""
        return await self._arun_as_stored(key_work.status(self._sealing))

    def rotate_keys(self, *, compromised: bool = False, progress: Progress | None = None) -> Rotation:
        """Bring the whole file under the keyring's active key; durable when this returns.

        Where it stands under that key already, a keyring in a file (`"file:PATH"`) first gets a new
        one. Only wrapped keys are written, unless `compromised`: then the store and every thread get
        new keys and are sealed anew, thread by thread. Killed at any moment, it goes on when called
        again. Other savers read on; one that holds its keys itself must be given the new one first.
        At the end free pages are given back to the file system and the WAL is cut, also while others have
        the file open; the result says where a reader kept that from happening.

        Args:
            compromised: the old master key is in wrong hands.
            progress: called with how many threads are done and how many remain.

        Raises:
            UsageError: the file isn't sealed, or there is no key to rotate to.
            CorruptionError: something isn't what was stored, and so isn't sealed anew.
        """
        done = self._run_as_stored(key_work.rotate(self._sealing, compromised, progress))
        return self._settled(done)

    async def arotate_keys(self, *, compromised: bool = False, progress: Progress | None = None) -> Rotation:
        """`rotate_keys`, async."""
        done = await self._arun_as_stored(key_work.rotate(self._sealing, compromised, progress))
        return await self._backend.in_thread(lambda: self._settled(done))

    def seal_existing(self, *, progress: Progress | None = None) -> int:
        """Seal a plaintext file in place, thread by thread, or finish what was interrupted.

        Stop every other saver on the file first: one that was opened without a key is refused as soon
        as it touches a sealed thread.

        Returns:
            How many threads were sealed.

        Raises:
            UsageError: the saver has no key.
            CorruptionError: something isn't what was stored.
        """
        done = self._run_as_stored(key_work.seal_existing(self._sealing, progress))
        self._settle()
        return done

    async def aseal_existing(self, *, progress: Progress | None = None) -> int:
        """`seal_existing`, async."""
        done = await self._arun_as_stored(key_work.seal_existing(self._sealing, progress))
        await self._backend.in_thread(self._settle)
        return done

    def unseal(self, *, progress: Progress | None = None) -> int:
        """Make a sealed file plaintext, thread by thread; then it is opened without a key.

        Returns:
            How many threads were unsealed.

        Raises:
            UsageError: the saver has no key.
            CorruptionError: something isn't what was stored.
        """
        done = self._run_as_stored(key_work.unseal(self._sealing, progress))
        self._settle()
        return done

    async def aunseal(self, *, progress: Progress | None = None) -> int:
        """`unseal`, async."""
        done = await self._arun_as_stored(key_work.unseal(self._sealing, progress))
        await self._backend.in_thread(self._settle)
        return done
