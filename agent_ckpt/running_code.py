"""What a saver knows of the program that uses it: its versions, its state version, captures, and graph."""

from __future__ import annotations

from agent_ckpt.captures import Captures
from agent_ckpt.changes import Watch
from agent_ckpt.environment import Environment
from agent_ckpt.migrations import Migrations
from agent_ckpt.options import Options


class RunningCode:
    """The parts of one saver that concern the running program.

    Attributes:
        environment: the versions that its checkpoints are written with.
        migrations: bring what is read to the current state version.
        captures: what is kept beside the channels.
        watch: what is done about a changed graph.
    """

    __slots__ = ("captures", "environment", "migrations", "watch")

    def __init__(self, options: Options, sealed: bool) -> None:
        self.environment = Environment()
        self.migrations = Migrations(options.state_version, options.migrations, options.write_migrations)
        self.captures = Captures(options.capture, sealed, options.mask_keys)
        self.watch = Watch(options.on_schema_change)
