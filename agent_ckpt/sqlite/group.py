"""One group commit: programs in one transaction, one COMMIT, then the answers."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import suppress
from typing import Any

from agent_ckpt.backend import Row, Statement
from agent_ckpt.errors import CkptError, PoisonedError, UnavailableError
from agent_ckpt.sqlite import connect, engine, errors, fork, wal
from agent_ckpt.sqlite.beside import Beside
from agent_ckpt.sqlite.drive import Counter, drive, roll_back
from agent_ckpt.sqlite.guard import Guard, Pauses
from agent_ckpt.sqlite.jobs import Job, announce, as_ours, own_copy

GROUP_BYTES = 8 * 1024 * 1024

_UNDOES_ALL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CORRUPT}
_UNDONE_AT_COMMIT = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT}


class Handle:
    """The writer's connection with the guard of its file.

    Attributes:
        unsettled: a COMMIT failed and left in the WAL what a recovery could take for committed; nothing is written
            through any handle before `settle` has put another commit in its place.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        counter: Counter,
        guard: Guard | None = None,
        wal_watch: wal.Wal | None = None,
        beside: Beside | None = None,
    ) -> None:
        self.connection = connection
        self.path = path
        self.counter = counter
        self.guard = guard
        self.wal = wal_watch
        self.beside = beside
        self.mutex = threading.RLock() if guard is None else guard.mutex
        self.bytes = 0
        self.weighs = False
        self.read_only = False
        self.unsettled = False

    def begin(self) -> bool:
        """Begin a write transaction; False if another process holds the guard.

        The caller holds `mutex`, and calls `end` in every case.

        Raises:
            sqlite3.Error: SQLITE_BUSY if somebody who doesn't know the guard holds SQLite's lock.
        """
        if self.guard is not None and not self.guard.lock_file():
            return False
        if self.unsettled:
            self.settle()
        # An interrupt can have kept the last transaction from being ended.
        roll_back(self.connection, self.counter)
        if self.wal is not None:
            self.wal.before_commit(self.connection)
        self.counter.control(self.connection, "BEGIN IMMEDIATE")
        if self.wal is not None and self.wal.limits.mode == "rollback" and connect.in_wal_mode(self.connection):
            raise UnavailableError(
                f"{self.path} was switched to WAL mode by another process, while this one opened it with a rollback "
                f"journal; open it everywhere with the same option journal",
                path=self.path,
            )
        return True

    def let_others_in(self) -> None:
        """After a commit: let go of the guard unless the WAL is to be folded.

        Each look at the system from here on is a wait for the interpreter's lock in a busy process, and the writers
        of other processes would wait with us.
        """
        if self.guard is not None and not (self.wal is not None and self.wal.is_large and self.wal.is_ours_to_fold):
            self.guard.unlock_file()

    @property
    def wants_folding(self) -> bool:
        """Whether there is a WAL, and it is ours to fold."""
        return self.wal is not None and self.wal.is_ours_to_fold

    def cut_wal(self, wait_s: float = 0.0) -> bool:
        """Fold the WAL and cut it to nothing, without a transaction; False if somebody is in the way."""
        if self.wal is None or not self.wal.is_ours_to_fold:
            return True
        with self.mutex:
            try:
                if self.guard is not None and not self.guard.lock_file():
                    return False
                done = self.wal.cut(self.connection, wait_s)
                if done and self.beside is not None:
                    self.beside.forget()
                return done
            finally:
                if self.guard is not None:
                    self.guard.unlock_file()

    def commit_something(self) -> None:
        """Commit a page or two, so that the WAL isn't folded to its end; the caller holds the guard.

        Raises:
            sqlite3.Error: if it fails; nothing is written before it was settled then.
        """
        self.unsettled = True
        self.settle()

    def settle(self) -> None:
        """Make certain that a commit which failed is not stored, by a commit that takes its place in the WAL.

        SQLite shows a commit to nobody before all of it, the sync included, has worked. But if the frames are in the
        file, and everybody is killed before somebody commits again, recovery would find them. The caller holds the
        guard and no transaction.

        Raises:
            sqlite3.Error: if it fails as well.
        """
        roll_back(self.connection, self.counter)
        if self.wal is not None:
            self.wal.before_commit(self.connection)
        self.counter.control(self.connection, "BEGIN IMMEDIATE")
        self.counter.statement(self.connection, Statement("next_sequence"))
        self.counter.control(self.connection, "COMMIT")
        self.unsettled = False

    def statement(self, step: Statement) -> list[Row]:
        """Execute one step of a program, and weigh what it binds."""
        if self.weighs:
            for values in step.params if step.many else (step.params,):
                self.bytes += _weight(values)
        return self.counter.statement(self.connection, step)

    def end(self) -> None:
        """Leave no transaction and no lock behind, whatever happened. Idempotent."""
        try:
            roll_back(self.connection, self.counter)
        finally:
            if self.guard is not None:
                self.guard.unlock_file()

    def close(self) -> None:
        """Close the connection; fold the WAL before, if nobody else is writing."""
        with self.mutex:
            try:
                # If it fails, what is committed is in the WAL; the next one to open the file folds it.
                with suppress(CkptError, *engine.OF_DRIVER_OR_SYSTEM):
                    if self.wants_folding and self.guard is not None and self.guard.lock_file():
                        assert self.wal is not None
                        if self.wal.is_in_place():
                            wal.truncate(self.connection, 0.0)
            finally:
                self.connection.close()
                if self.guard is not None:
                    self.guard.unlock_file()

    def abandon(self) -> None:
        fork.abandon(self.connection)


def _weight(values: Any) -> int:
    weight = 0
    for value in values:
        # Ids and names weigh little beside frames.
        if type(value) is bytes:
            weight += len(value)
    return weight


class _Undone(Exception):
    """SQLite ended the whole transaction, so all other programs of the group have to run again, each alone."""


class _Spoilt(Exception):
    """A program failed after it had written, so the transaction is undone, and the others have to run again.

    A savepoint for each program would undo it alone. But nearly every program that is refused is refused before it
    writes, and two more statements for each of the others cost more than running a few of them twice.
    """


def run_group(handle: Handle, group: list[Job], own: Job | None) -> None:
    """Run programs in the transaction that is open, commit once, then answer.

    A job that is still unanswered afterwards has to run again: the group had grown too large, or another's failure
    undid the transaction (where any may fail the same way, `alone` is set).

    Args:
        handle: with its transaction begun.
        group: the jobs to run, at least one.
        own: the job of the OS thread that runs this, None on the worker. A KeyboardInterrupt is raised in some
            program then, but is meant for the OS thread: it passes through, and nothing of the group is stored.

    Raises:
        PoisonedError: if the file or its WAL was replaced under the process. Nobody was answered.
    """
    handle.bytes, handle.weighs = 0, len(group) > 1
    ran: list[Job] = []
    for job in group:
        if handle.bytes > GROUP_BYTES:
            break
        ran.append(job)
        try:
            _run_one(handle, job, own, single=len(group) == 1)
        except (_Undone, _Spoilt) as exc:
            roll_back(handle.connection, handle.counter)
            _answer([job])
            if isinstance(exc, _Undone):
                _run_alone(group)
            return
    if all(job.error is not None for job in ran):
        roll_back(handle.connection, handle.counter)
        _answer(ran)
        return
    try:
        _commit_and_answer(handle, ran)
    except engine.ERRORS as exc:
        roll_back(handle.connection, handle.counter)
        _commit_failed(handle, ran, exc)
        return
    if handle.wal is not None and (handle.guard is None or handle.guard.held):
        handle.wal.fold_if_large(handle.connection)


def _run_one(handle: Handle, job: Job, own: Job | None, single: bool) -> None:
    connection = handle.connection
    job.result = job.error = None
    changes = connection.total_changes
    try:
        job.result = drive(handle.statement, job.factory())
    except BaseException as exc:
        if own is not None and not isinstance(exc, Exception):
            raise
        job.error = as_ours(exc, handle.path, job)
        handle.read_only = handle.read_only or errors.code(exc) == sqlite3.SQLITE_READONLY
        if errors.code(exc) in _UNDOES_ALL or not connection.in_transaction:
            raise _Undone from exc
        if not single and connection.total_changes != changes:
            raise _Spoilt from exc


def _commit_and_answer(handle: Handle, ran: list[Job]) -> None:
    try:
        commit(handle, max(job.deadline for job in ran))
        handle.let_others_in()
        if handle.wal is not None:
            handle.wal.check()
        _answer(ran)
    except engine.ERRORS:
        raise
    except PoisonedError:
        raise
    except BaseException:
        # A signal's exception came between COMMIT and the answers: run again, the programs would store twice.
        if not handle.connection.in_transaction:
            _answer(ran)
        raise


def commit(handle: Handle, deadline: float) -> None:
    """Commit; a database in memory can be busy here, as its readers lock it."""
    wait: Pauses | None = None
    while True:
        try:
            handle.counter.control(handle.connection, "COMMIT")
            return
        except engine.ERRORS as exc:
            wait = wait or Pauses(deadline)
            if not (errors.is_busy(exc) and handle.connection.in_transaction and wait.sleep()):
                raise


def _commit_failed(handle: Handle, ran: list[Job], exc: sqlite3.Error) -> None:
    if errors.code(exc) == sqlite3.SQLITE_FULL and len(ran) > 1:
        _run_alone(ran)
        return
    known = errors.is_busy(exc) or errors.code(exc) in _UNDONE_AT_COMMIT
    failed = as_ours(exc, handle.path, ran[0]) if known else _settled(handle, exc)
    failed.__cause__ = exc
    for job in ran:
        job.error = own_copy(failed)
    _answer(ran)


def _settled(handle: Handle, exc: sqlite3.Error) -> CkptError:
    """The error of a COMMIT that failed with an I/O error, after looking whether its outcome can be made certain."""
    handle.unsettled = True
    try:
        # With a rollback journal instead of a WAL, it may be stored all the same.
        if connect.in_wal_mode(handle.connection):
            handle.settle()
    except engine.ERRORS:
        roll_back(handle.connection, handle.counter)
    if not handle.unsettled:
        return errors.translate(exc, handle.path, "COMMIT")
    return PoisonedError(
        f"COMMIT on {handle.path} failed ({exc}), so whether the write is on disk is unknown. Read the thread again; "
        f"the next write opens the file anew, and goes on if that works.",
        path=handle.path,
    )


def _run_alone(jobs: list[Job]) -> None:
    for job in jobs:
        job.alone = True


def _answer(jobs: list[Job]) -> None:
    for job in jobs:
        job.answered = True
    announce(jobs)
