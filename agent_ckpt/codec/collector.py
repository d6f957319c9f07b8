"""Holding Python's cyclic collector off while many objects are built."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_held_off() -> Iterator[None]:
    """Hold Python's cyclic collector off: nothing that is built here is garbage, and its passes over
    the new objects cost more than building them."""
    collecting = gc.isenabled()
    if collecting:
        gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
