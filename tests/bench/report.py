"""Tables that a reader can rerun: cells, budgets, plain text and JSON; and the statistics behind them."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Cell = str | int | float


@dataclass
class Table:
    """One measured table.

    Attributes:
        name: what to type after `python -m tests.bench` to get it alone.
        title: one line saying what was measured and how.
        columns: headings; units stand in them.
        rows: cells; floats are printed with three significant digits.
        budgets: lines comparing a measured figure with its budget.
        notes: what a reader must know to judge the figures.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: list[list[Cell]] = field(default_factory=list)
    budgets: list[Budget] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: Cell) -> None:
        self.rows.append(list(cells))

    def budget(self, what: str, measured: float, limit: float, *, at_least: bool = False) -> None:
        """Compare a measured figure with its limit (an upper one unless `at_least`)."""
        self.budgets.append(Budget(what, measured, limit, at_least))

    def text(self) -> str:
        grid = [[str(each) for each in self.columns], *[[show(cell) for cell in row] for row in self.rows]]
        widths = [max(len(row[i]) for row in grid) for i in range(len(self.columns))]
        lines = [f"[{self.name}] {self.title}"]
        for number, row in enumerate(grid):
            cells = [row[0].ljust(widths[0]), *[row[i].rjust(widths[i]) for i in range(1, len(row))]]
            lines.append("  " + "  ".join(cells).rstrip())
            if number == 0:
                lines.append("  " + "  ".join("-" * width for width in widths))
        lines += [f"  budget: {each.text()}" for each in self.budgets]
        lines += [f"  note: {each}" for each in self.notes]
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        """The table as JSON-ready values."""
        return {
            "name": self.name,
            "title": self.title,
            "columns": list(self.columns),
            "rows": self.rows,
            "budgets": [{**vars(each), "met": each.met} for each in self.budgets],
            "notes": self.notes,
        }


@dataclass
class Budget:
    """A figure and the limit that it should keep."""

    what: str
    measured: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def text(self) -> str:
        sign = ">=" if self.at_least else "<="
        verdict = "met" if self.met else "MISSED"
        return f"{self.what}: {show(self.measured)} (budget {sign} {show(self.limit)}) {verdict}"


def show(cell: Cell) -> str:
    """A cell as text: integers with thousands separators, floats with three significant digits."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    if not math.isfinite(cell) or cell == 0:
        return str(cell)
    digits = max(0, 2 - math.floor(math.log10(abs(cell))))
    return f"{cell:,.{digits}f}"


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """Median, minimum and maximum."""
    known = list(values)
    return statistics.median(known), min(known), max(known)


def ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Median of the ratios of values measured in the same run."""
    return statistics.median(a / b for a, b in zip(values, others, strict=True))


def exponent(sizes: Sequence[tuple[float, float]]) -> float:
    """The power of x by which y grows: the slope of log y over log x, by least squares."""
    logs = [(math.log(x), math.log(y)) for x, y in sizes]
    return statistics.linear_regression(*zip(*logs, strict=True)).slope


def bytes_on_disk(path: Path) -> int:
    """Bytes of a database and everything beside it whose name starts with its name (WAL and side files).

    Uses stat only: opening a live database by other means than SQLite would drop this process's locks on it.
    """
    return sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))


def fsync_ms(folder: Path, times: int = 40) -> float:
    """Median time of one fsync after a write of 4 KiB to a file in this folder, in milliseconds."""
    taken = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(times):
            file.write(bytes(4096))
            file.flush()
            start = time.perf_counter()
            os.fsync(file.fileno())
            taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken)
