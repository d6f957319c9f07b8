"""The SQLite backend: one file in WAL mode, one writer with group commit, readers beside it."""

from agent_ckpt.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
