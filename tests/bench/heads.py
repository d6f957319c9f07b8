"""Where a run of the benchmark works: its folder, its sizes, and long threads that several tables share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.agents import Graph, Saver
from tests.bench.agents import build, seed_thread, take_turns
from tests.bench.savers import CONTENDERS, NULL, Contender

THREAD = "bench"
GROWN = 300


@dataclass
class Run:
    """One run of the benchmark.

    Attributes:
        folder: where the files go; fsync is measured here too.
        contenders: the savers to compare, in the order of the columns.
        turns: length of the long thread of size, turns and restore; None: each table's own.
        full: the sizes of the budgets instead of the short ones.
    """

    folder: Path
    contenders: Sequence[Contender]
    turns: int | None = None
    full: bool = False
    heads: dict[tuple[str, int], Path] = field(default_factory=dict)

    def names(self) -> list[str]:
        return [each.name for each in self.contenders]

    def path(self, name: str) -> Path:
        """A path for a new database in the run's folder."""
        number = sum(1 for _ in self.folder.iterdir())
        return self.folder / f"{name}-{number}.db"


def grow(graph: Graph, contender: Contender, turns: int) -> None:
    """Bring the long thread to `turns` turns.

    Ours really takes every turn. Beyond 300 the others get their messages in one update, since their cost depends on
    the length of the head and the real history would take gigabytes.
    """
    if turns <= GROWN or contender.name == "ours":
        take_turns(graph, THREAD, 0, turns)
    else:
        seed_thread(graph, THREAD, turns)


def head_file(run: Run, contender: Contender, turns: int) -> Path:
    """A closed database whose long thread has at least `turns` turns, made once per run of the benchmark."""
    key = contender.name, turns
    if key not in run.heads:
        path = run.path(f"head-{contender.name}")
        with contender.open(path) as saver:
            grow(build(saver), contender, turns)
        run.heads[key] = path
    return run.heads[key]


@contextmanager
def opened_heads(run: Run, turns: int) -> Iterator[dict[str, tuple[Saver, Graph]]]:
    """Every contender, and the null saver, open at a head of `turns` turns: name -> (saver, graph)."""
    with ExitStack() as stack:
        opened: dict[str, tuple[Saver, Graph]] = {}
        for contender in [NULL, *run.contenders]:
            if contender.on_disk:
                saver = stack.enter_context(contender.open(head_file(run, contender, turns)))
                graph = build(saver)
            else:
                saver = stack.enter_context(contender.open(run.folder))
                graph = build(saver)
                grow(graph, contender, turns)
            opened[contender.name] = saver, graph
        yield opened


def contenders(names: Sequence[str]) -> list[Contender]:
    """Contenders by name.

    Raises:
        ValueError: for an unknown name; it lists the known ones.
    """
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown:
        raise ValueError(f"unknown saver {', '.join(unknown)}; known: {', '.join(CONTENDERS)}")
    return [CONTENDERS[name] for name in names]
