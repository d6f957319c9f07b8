"""A sealed store's keys while it is open, and the names and secrets in the rows of its statements.

Programs know threads, namespaces and runs by name. In a sealed file these stand sealed, and a thread's secret stands
wrapped; `translated` runs a program against it, so that no program needs to know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from agent_ckpt.backend import Program, Statement
from agent_ckpt.codec import frame
from agent_ckpt.core.rows import SECRET_SIZE, unsealed
from agent_ckpt.errors import CorruptionError, SealError, WrongKeyError
from agent_ckpt.later import Later
from agent_ckpt.model import Place, Secret

if TYPE_CHECKING:
    from agent_ckpt.codec import seal
    from agent_ckpt.codec.keyring import Keyring
else:
    seal = Later("agent_ckpt.codec.seal")

SEALS_THREAD_IDS = 1
RESEALING = 4
"""A rotation for a compromised key at a key service is going on."""
SEALING = 2
"""The file is being sealed, or unsealed: some of its threads are plaintext."""
_SECRETS_KEPT = 4096


class KeysNeeded(Exception):
    """A program met wrapped keys that only a key service can unwrap; fetch them and run it again."""

    def __init__(self, keyring: Keyring, wanted: list[tuple[bytes, bytes, str]]) -> None:
        super().__init__("unwrap keys")
        self._keyring, self._wanted = keyring, wanted

    def fetch(self) -> None:
        """Unwrap them; may wait for the key service.

        Raises:
            KeyServiceError
        """
        for envelope, context, what in self._wanted:
            self._keyring.unwrap(envelope, context, what)


class KeysChanged(Exception):
    """The store's keys were changed by another saver; open them again and run the program again."""


def key_id_of(envelope: bytes) -> str:
    """The id of the master key that an envelope is wrapped under; empty where it can't be read."""
    try:
        return seal.read_envelope(envelope)[0]
    except frame.UnsealError:
        return ""


def turn_of(envelope: bytes) -> int:
    """After how many rotations for a compromised key an envelope's keys were made; -1 where it can't be read."""
    try:
        return seal.read_envelope(envelope)[3]
    except frame.UnsealError:
        return -1


class StoreSeal(NamedTuple):
    """What stands in the store's row: flags, and the envelope of the store's key."""

    flags: int
    envelope: bytes

    @classmethod
    def read(cls, stored: bytes) -> StoreSeal:
        return cls(stored[0], stored[1:])

    @property
    def seals_thread_ids(self) -> bool:
        return bool(self.flags & SEALS_THREAD_IDS)

    def stored(self) -> bytes:
        return bytes((self.flags,)) + self.envelope


def store_state() -> Program[tuple[bytes, int, bytes | None, bool]]:
    """Store id, commit sequence, seal, and whether there are threads; never run translated."""
    found = yield Statement("store_state")
    if not found:
        raise CorruptionError("the store's row is missing; restore a backup")
    store_id, sequence, stored, threads = found[0]
    return store_id, sequence, stored, bool(threads)


class StoreKeys:
    """The keys of one sealed store.

    Attributes:
        store_id, stored: as in the store's row.
        seals_thread_ids: whether thread ids stand sealed.
        turn: after how many rotations for a compromised key its own was made.
        secrets: by envelope, the secrets of threads that were made before.
    """

    def __init__(self, keyring: Keyring, store_id: bytes, stored: bytes) -> None:
        self.keyring = keyring
        self.store_id = store_id
        self.stored = stored
        found = StoreSeal.read(stored)
        self.seals_thread_ids = found.seals_thread_ids
        self.turn = turn_of(found.envelope)
        context = seal.store_context(store_id, found.flags)
        self._store_key = keyring.unwrap(found.envelope, context, "the store")
        self._names = seal.NameCipher(self._store_key, store_id)
        self.secrets: dict[bytes, Secret] = {}
        self.ways = _WAYS[self.seals_thread_ids]

    def seal_name(self, role: str, name: Any) -> Any:
        """What stands in the file for a name."""
        if type(name) is bytes or name is None or name == "" or (role == "thread" and not self.seals_thread_ids):
            return name
        return self._names.seal(role, str(name))

    def open_name(self, role: str, stored: Any) -> Any:
        """Undo `seal_name`; a run that is a UUID stays as its 16 bytes.

        Raises:
            UnsealError
        """
        if stored is None or stored == "" or (role == "thread" and not self.seals_thread_ids):
            return stored
        if type(stored) is not bytes:
            raise frame.UnsealError("it is plaintext in a sealed file", "plaintext")
        if role == "run" and len(stored) == UUID_SIZE:
            return stored
        return self._names.open(role, stored)

    def knows(self, envelope: bytes) -> bool:
        return envelope in self.secrets or not self.keyring.remote or self.keyring.known(envelope) is not None

    def thread_id(self, stored: Any) -> str:
        """A thread's id from what stands in the file.

        Raises:
            SealError
        """
        try:
            return str(self.open_name("thread", stored))
        except frame.UnsealError as exc:
            why = exc.detail or frame.NOT_HERE
            raise unsealed(Place("", "", None), "a thread's id", why, exc.reason) from None

    @property
    def store_key(self) -> bytes:
        return self._store_key

    def secret(self, envelope: bytes, thread_id: str) -> Secret:
        """A thread's secret from its row. Where its keys can't be had, one that says so when it is used.

        Raises:
            KeyServiceError
        """
        found = self.secrets.get(envelope)
        if found is not None:
            return found
        place = Place(thread_id, "", None)
        if len(envelope) == SECRET_SIZE:
            why = "its key is plaintext in a sealed file: somebody wrote it past the saver"
            return _without_keys(envelope, unsealed(place, "the key", why, "plaintext"))
        context = seal.thread_context(self.store_id, thread_id)
        try:
            material = self.keyring.unwrap(envelope, context, f"thread {thread_id!r}")
        except SealError as exc:
            return _without_keys(envelope, exc)
        except WrongKeyError as exc:
            return _without_keys(envelope, unsealed(place, "the key", exc.message, "unknown_key"))
        return self._keep(seal.thread_secret(material, context, envelope))

    def context(self, thread_id: str) -> bytes:
        return seal.thread_context(self.store_id, thread_id)

    def fresh(self, thread_id: str, address_key: bytes | None = None) -> Secret:
        """A secret with a new data key; may wait for a key service.

        Args:
            address_key: the key of the thread's addresses, where blobs with addresses exist already.
        """
        own = seal.new_keys(seal.KEY_SIZE)
        material = seal.KeyBytes(own + (address_key or seal.new_keys(seal.ADDRESS_KEY_SIZE)))
        context = self.context(thread_id)
        return self._keep(seal.thread_secret(material, context, self.keyring.wrap(material, context, self.turn)))

    def _keep(self, made: Secret) -> Secret:
        if len(self.secrets) >= _SECRETS_KEPT:
            self.secrets = {}
        self.secrets[made.envelope] = made
        return made


UUID_SIZE = 16


def _without_keys(envelope: bytes, error: SealError) -> Secret:
    return Secret(b"", frame.NoCipher(error), envelope)


class Shape(NamedTuple):
    """Where names and secrets stand in a statement's parameters and rows, by position.

    Attributes:
        params: roles of parameters.
        columns: roles of columns.
        secret: the column of a thread's secret; its thread_id is the first parameter, or the first column where
            that has a role.
        found: a column that is None where the namespace isn't stored.
    """

    params: dict[int, str]
    columns: dict[int, str]
    secret: int | None = None
    found: int | None = None


class Way(NamedTuple):
    """A Shape as it is gone through for each statement, with nothing of thread ids where those stand in clear.

    Attributes:
        params, columns, secret, found: as in the Shape.
        run: the parameter that is a run, or None.
        finds: whether it looks something up by its first parameter.
        opens: whether something of its rows is to be opened.
        asks_thread, tells_thread: whether the first parameter, and the first column, is a thread_id.
    """

    params: tuple[tuple[int, str], ...]
    columns: tuple[tuple[int, str], ...]
    secret: int | None
    found: int | None
    run: int | None
    finds: bool
    opens: bool
    asks_thread: bool
    tells_thread: bool


def _ways(seals_thread_ids: bool) -> dict[str, Way]:
    """How each statement is translated; those in which nothing is left to translate are left out."""
    made = {}
    for name, shape in SHAPES.items():
        params, columns = (
            tuple((at, role) for at, role in roles.items() if seals_thread_ids or role != "thread")
            for roles in (shape.params, shape.columns)
        )
        first = shape.params.get(0)
        run = 4 if 4 in shape.params else 0 if first == "run" else None
        opens = bool(columns) or shape.secret is not None
        way = Way(
            params, columns, shape.secret, shape.found, run, first is not None, opens, first == "thread",
            0 in shape.columns,
        )  # fmt: skip
        if params or opens or way.finds:
            made[name] = way
    return made


ROLES = {"thread": "a thread's id", "ns": "a namespace's name", "run": "a run's id", "label": "a lease's label"}
_AT = {0: "thread", 1: "ns"}
_PAGE_COLUMNS = {0: "thread", 7: "ns", 11: "run"}

SHAPES: dict[str, Shape] = {
    "thread_row": Shape({0: "thread"}, {}, 5),
    "put_begin": Shape(_AT, {11: "run", 15: "run", 19: "label"}, 5, 6),
    "writes_begin": Shape(_AT, {12: "label"}, 5, 6),
    "head_of_space": Shape(_AT, {10: "run", 15: "label"}, 5, 6),
    "checkpoint_by_id": Shape(_AT, {10: "run", 15: "label"}, 5, 6),
    "page_of_space": Shape(_AT, _PAGE_COLUMNS, 6),
    "page_of_thread": Shape({0: "thread"}, _PAGE_COLUMNS, 6),
    "page_of_store": Shape({}, _PAGE_COLUMNS, 6),
    "page_by_id": Shape({0: "thread"}, _PAGE_COLUMNS, 6),
    "seqs_of_ids": Shape({0: "thread"}, {0: "ns"}),
    "all_threads": Shape({}, {0: "thread", 5: "ns", 9: "run"}, 1),
    "all_thread_ids": Shape({}, {0: "thread"}),
    "insert_thread": Shape({1: "thread"}, {}),
    "keys_of_thread": Shape({}, {0: "ns"}),
    "rename_thread": Shape({1: "thread"}, {}),
    "lease_of_thread": Shape({0: "thread"}, {2: "label"}),
    "all_leases": Shape({}, {0: "thread", 3: "label"}),
    "put_lease": Shape({0: "thread", 3: "label"}, {}),
    "renew_lease": Shape({0: "thread"}, {}),
    "drop_lease": Shape({0: "thread"}, {}),
    "break_lease": Shape({0: "thread"}, {}),
    "waiters_of_thread": Shape({0: "thread"}, {}),
    "insert_waiter": Shape({0: "thread"}, {}),
    "drop_waiter": Shape({0: "thread"}, {}),
    "drop_dead_waiters": Shape({0: "thread"}, {}),
    "insert_space": Shape({1: "ns"}, {}),
    "insert_checkpoint": Shape({4: "run"}, {}),
    "insert_own_checkpoint": Shape({4: "run"}, {}),
    "insert_copied_checkpoint": Shape({4: "run"}, {}),
    "environment_of_checkpoint": Shape(_AT, {}),
    "insert_writes": Shape({4: "run"}, {}),
    "writes_of_checkpoint": Shape({}, {1: "run"}),
    "writes_of_task": Shape({}, {1: "run"}),
    "writes_of_page": Shape({}, {2: "run"}),
    "writes_of_ancestors": Shape({}, {2: "run"}),
    "undone_ids": Shape(_AT, {}),
    "checkpoints_of_space": Shape({}, {3: "run"}),
    "ancestors": Shape({}, {3: "run"}),
    "spaces_of_thread": Shape({}, {1: "ns"}),
    "checkpoints_of_thread": Shape({}, {2: "ns", 6: "run"}),
    "writes_of_thread": Shape({}, {2: "ns", 6: "run"}),
    "heads_of_thread": Shape({}, {1: "ns", 5: "run"}),
    "threads_of_run": Shape({0: "run"}, {0: "thread"}),
    "drop_writes_of_run": Shape({0: "run"}, {}),
    "drop_writes_of_run_checkpoints": Shape({0: "run"}, {}),
    "drop_checkpoints_of_run": Shape({0: "run"}, {}),
    "vault_of_thread": Shape({0: "thread"}, {}),
    "vault_owners": Shape({}, {0: "thread"}),
    "insert_vault": Shape({1: "thread"}, {}),
}
"""Every statement that takes or gives a thread_id, a namespace, a run, a lease's label or a thread's secret."""

_WAYS = {seals_thread_ids: _ways(seals_thread_ids) for seals_thread_ids in (False, True)}
