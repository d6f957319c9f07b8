"""Run one program on one connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from agent_ckpt.backend import Program, Row, Statement, T
from agent_ckpt.sqlite import engine
from agent_ckpt.sqlite.queries import QUERIES, execute, execute_many

Hook = Callable[[str], None]


class Counter:
    """Tells an optional hook about every call into sqlite3, by name."""

    __slots__ = ("hook",)

    def __init__(self) -> None:
        self.hook: Hook | None = None

    def control(self, connection: sqlite3.Connection, sql: str) -> None:
        """Execute a statement that controls a transaction, such as BEGIN IMMEDIATE or COMMIT."""
        if self.hook is not None:
            self.hook(sql)
        connection.execute(sql)

    def statement(self, connection: sqlite3.Connection, step: Statement) -> list[Row]:
        """Execute one step of a program; the hook hears of each execution of an executemany."""
        name, params, many = step
        if many:
            if self.hook is not None:
                for _ in params:
                    self.hook(name)
            execute_many(connection, QUERIES[name], params)
            return []
        if self.hook is not None:
            self.hook(name)
        return execute(connection, QUERIES[name], params).fetchall()


def drive(execute: Callable[[Statement], list[Row]], program: Program[T]) -> T:
    """Run a program from its first step to its return value, inside a transaction that the caller holds.

    The generator is closed in every case.
    """
    try:
        step = next(program)
        while True:
            step = program.send(execute(step))
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        program.close()


def roll_back(connection: sqlite3.Connection, counter: Counter) -> None:
    """End the transaction, if SQLite has not ended it by itself (it does after a full disk or an I/O error)."""
    if connection.in_transaction:
        try:
            counter.control(connection, "ROLLBACK")
        except engine.ERRORS:
            if connection.in_transaction:
                raise


def read(connection: sqlite3.Connection, program: Program[T], counter: Counter) -> T:
    """Run a program on one snapshot of the store, and hold nothing after it."""
    try:
        counter.control(connection, "BEGIN")
        result = drive(lambda step: counter.statement(connection, step), program)
        counter.control(connection, "COMMIT")
        return result
    finally:
        roll_back(connection, counter)
