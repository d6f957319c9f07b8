"""Running programs against a sealed file: names and secrets in what their statements take and give (`storekeys`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_ckpt.backend import Factory, Program, Row, Statement, T
from agent_ckpt.codec import frame
from agent_ckpt.core.rows import SECRET_SIZE, unsealed
from agent_ckpt.core.storekeys import ROLES, UUID_SIZE, KeysChanged, KeysNeeded, StoreKeys, Way
from agent_ckpt.errors import SealError
from agent_ckpt.model import Place


def translated(factory: Factory[T], keys: StoreKeys) -> Program[T]:
    """The program that a factory makes, as it runs against a sealed file."""
    program = factory()
    send, way_of = program.send, keys.ways.get
    try:
        step = next(program)
        while True:
            way = way_of(step.name)
            if way is None:
                step = send((yield step))
                continue
            params = step.params
            if way.run is not None and type(params[way.run]) is str:
                yield from _check_keys(keys)
            rows = yield (_sealed(step, way, keys) if way.params else step)
            if not rows:
                if way.finds:
                    yield from _check_keys(keys)
                step = send(rows)
                continue
            if way.found is not None and rows[0][way.found] is None:
                # It was looked up by name and isn't there, perhaps since names are sealed otherwise now.
                yield from _check_keys(keys)
            if way.opens:
                try:
                    rows = _opened(rows, params, way, keys)
                except SealError:
                    yield from _check_keys(keys)
                    raise
            step = send(rows)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        program.close()


def _sealed(step: Statement, way: Way, keys: StoreKeys) -> Statement:
    changed: list[Any] | None = None
    for at, role in way.params:
        name = step.params[at]
        if name is None or name == "" or type(name) is bytes:
            continue
        changed = changed or list(step.params)
        changed[at] = keys.seal_name(role, name)
    return step if changed is None else step._replace(params=changed)


def _check_keys(keys: StoreKeys) -> Program[None]:
    found = yield Statement("store_row")
    if not found or found[0][2] != keys.stored:
        raise KeysChanged


def _opened(rows: list[Row], params: Sequence[Any], way: Way, keys: StoreKeys) -> list[Row]:
    at = way.secret
    if at is not None and (len(rows) > 1 or rows[0][at] not in keys.secrets):
        _fetch(rows, params, way, keys)
    return [_opened_row(row, params, way, keys) for row in rows]


def _fetch(rows: list[Row], params: Sequence[Any], way: Way, keys: StoreKeys) -> None:
    """Before rows with secrets are opened: what only a key service can unwrap must be there.

    Raises:
        KeysNeeded
    """
    assert way.secret is not None
    fresh = [row for row in rows if not keys.knows(row[way.secret]) and len(row[way.secret]) != SECRET_SIZE]
    wanted = {row[way.secret]: _thread_of(row, params, way, keys) for row in fresh}
    if wanted:
        raise KeysNeeded(
            keys.keyring,
            [(envelope, keys.context(thread_id), f"thread {thread_id!r}") for envelope, thread_id in wanted.items()],
        )


def _thread_of(row: Row, params: Sequence[Any], way: Way, keys: StoreKeys) -> str:
    return keys.thread_id(row[0]) if way.tells_thread else str(params[0])


def _opened_row(row: Row, params: Sequence[Any], way: Way, keys: StoreKeys) -> Row:
    made = list(row)
    for at, role in way.columns:
        stored = row[at]
        if stored is None or stored == "" or (role == "run" and type(stored) is bytes and len(stored) == UUID_SIZE):
            continue
        try:
            made[at] = keys.open_name(role, stored)
        except frame.UnsealError as exc:
            thread_id = params[0] if way.asks_thread else ""
            why = exc.detail or frame.NOT_HERE
            raise unsealed(Place(str(thread_id), "", None), ROLES[role], why, exc.reason) from None
    if way.secret is not None:
        envelope = row[way.secret]
        known = keys.secrets.get(envelope)
        made[way.secret] = known or keys.secret(envelope, str(made[0] if way.tells_thread else params[0]))
    return tuple(made)
