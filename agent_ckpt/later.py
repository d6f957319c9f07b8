"""Modules that are imported when something of them is first used.

Importing the class costs every program that uses it; what only some of them need should not. A name
stands for the module until then:

    if TYPE_CHECKING:
        from agent_ckpt.core import lease as leasing
    else:
        leasing = Later("agent_ckpt.core.lease")
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


class Later:
    """Stands for a module, and imports it at the first look at something of it.

    Args:
        name: the module's full name.
        quietly: drop warnings that its import gives.
    """

    __slots__ = ("_module", "_name", "_quietly")

    def __init__(self, name: str, *, quietly: bool = False) -> None:
        self._name = name
        self._quietly = quietly
        self._module: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._module is None:
            with warnings.catch_warnings():
                if self._quietly:
                    warnings.simplefilter("ignore")
                self._module = import_module(self._name)
        return getattr(self._module, name)
