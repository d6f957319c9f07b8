"""Reading a file that LangGraph's official SqliteSaver wrote; the file is never written."""

from __future__ import annotations

import os
import sqlite3
import threading
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from agent_ckpt.errors import CkptError, FormatError, UsageError
from agent_ckpt.sqlite import connect, errors, files, schema
from agent_ckpt.sqlite.queries import QUERIES, execute

Key = tuple[str, str, str | None]
"""Namespace, checkpoint id and parent id."""

_SMALLEST = 512


class OfficialRows:
    """The rows of an official file, on one snapshot from the first read to `close`.

    Without a -wal the file is opened as immutable, so SQLite makes no -wal or -shm beside it. With one, which
    somebody's process has in use or left behind, it is opened read-only: SQLite then renews the -shm, an index
    that holds no data; file and -wal keep their bytes.

    Args:
        path: the file.

    Raises:
        UsageError: for a missing file.
        FormatError: for a file that the official saver didn't write, or langgraph before 0.2 did.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.realpath(os.fspath(path))
        self._lock = threading.Lock()
        self._before = self._status()
        connection: sqlite3.Connection | None = None
        try:
            connection = self._open()
            with_path = self._check(connection)
            connection.execute("BEGIN")
        except BaseException as exc:
            if connection is not None:
                connection.close()
            if isinstance(exc, sqlite3.Error):
                raise self._translated(exc) from exc
            raise
        self._connection = connection
        self._writes = QUERIES["official_writes"] if with_path else QUERIES["official_writes_without_path"]

    @property
    def size(self) -> int:
        """Bytes of the file and its -wal when it was opened."""
        return sum(found[1] for found in self._before if found is not None)

    def threads(self) -> list[str]:
        return [thread_id for (thread_id,) in self._rows(QUERIES["official_threads"])]

    def keys(self, thread_id: str) -> list[Key]:
        """The checkpoints of a thread, oldest first as the official saver orders them: by id."""
        found = self._rows(QUERIES["official_keys"], thread_id)
        return [(ns, checkpoint_id, parent or None) for ns, checkpoint_id, parent in found]

    def checkpoint(self, thread_id: str, ns: str, checkpoint_id: str) -> tuple[Any, Any, Any]:
        """Type, bytes and metadata of a checkpoint."""
        (found,) = self._rows(QUERIES["official_checkpoint"], thread_id, ns, checkpoint_id)
        return found[0], found[1], found[2]

    def writes(self, thread_id: str, ns: str, checkpoint_id: str) -> list[tuple[Any, ...]]:
        """task_path, task_id, idx, channel, type and bytes of the pending writes, in their order."""
        return self._rows(self._writes, thread_id, ns, checkpoint_id)

    def close(self) -> None:
        """Give the file back.

        Raises:
            FormatError: when somebody wrote it meanwhile though nobody had it open: what was read may be torn.
        """
        self._connection.close()
        if self._immutable and self._status() != self._before:
            raise FormatError(
                f"{self.path} was written while it was read, so what was read can't be relied on. Stop its writers "
                f"and run the import again.",
                path=self.path,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if exc is None:
            self.close()
        else:
            self._connection.close()

    def _status(self) -> tuple[tuple[int, int] | None, ...]:
        found = [files.status(self.path + suffix) for suffix in ("", "-wal")]
        return tuple((one.st_mtime_ns, one.st_size) if one is not None else None for one in found)

    def _open(self) -> sqlite3.Connection:
        main, wal = self._before
        if main is None or not os.path.isfile(self.path):
            raise UsageError(f"there is no file {self.path}", path=self.path)
        if main[1] < _SMALLEST:
            raise self._foreign(f"it has {main[1]} bytes")
        # A file that this process has open already has its -shm anyhow; an immutable look would not see its locks.
        found = files.status(self.path)
        held = found is not None and files.held_by_this_process(files.inode_of(found))
        self._immutable = (wal is None or wal[1] == 0) and not held
        mode = "mode=ro&immutable=1" if self._immutable else "mode=ro"
        connection = connect.connect(f"file:{quote(self.path)}?{mode}")
        connect.distrust_schema(connection)
        connect.query_only(connection)
        return connection

    def _check(self, connection: sqlite3.Connection) -> bool:
        """Whether the writes have a task_path; raises for any other layout than the official one."""
        if connect.marks(connection)[0] == schema.APPLICATION_ID:
            raise UsageError(
                f"{self.path} is a database of agent_ckpt, not of LangGraph's SqliteSaver. To bring threads from one "
                f"to another, export and import them, or use agent_ckpt.transfer.",
                path=self.path,
            )
        if schema.is_official(connection):
            return "task_path" in schema.columns(connection, "writes")
        if "thread_ts" in schema.columns(connection, "checkpoints"):
            raise FormatError(
                f"{self.path} was written by langgraph before 0.2, which kept other tables (thread_ts in place of "
                f"checkpoint_id) that no later saver reads. It was left untouched.",
                path=self.path,
            )
        raise self._foreign("its tables are others")

    def _foreign(self, why: str) -> FormatError:
        return FormatError(
            f"{self.path} was not written by LangGraph's SqliteSaver: {why}. It was left untouched.", path=self.path
        )

    def _rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return execute(self._connection, sql, params).fetchall()
        except sqlite3.Error as exc:
            raise self._translated(exc) from exc

    def _translated(self, exc: sqlite3.Error) -> CkptError:
        if errors.code(exc) == sqlite3.SQLITE_NOTADB:
            return self._foreign("it is no SQLite database")
        return errors.translate(exc, self.path, "reading")
