"""What the commands print: text that can't drive a terminal, values as JSON.

Stored text is not to be trusted: a model, a tool or a web page wrote it. Nothing of it reaches the
terminal as a control sequence, as a change of the writing direction, or as rich's markup.
"""

from __future__ import annotations

import base64
import json
import math
import os
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from agent_ckpt.errors import CkptError

TEXT_LIMIT = 400
REPR_LIMIT = 200
DEPTH_LIMIT = 50

# Told by name, so that no command imports more of LangGraph than it reads through the saver.
_MESSAGE = "langchain_core.messages.base.BaseMessage"
_MESSAGE_FIELDS = ("type", "content", "id", "name", "tool_calls", "tool_call_id", "status")
_FIELDS = {"langgraph.types.Interrupt": ("id", "value"), "langgraph.types.Send": ("node", "arg")}

# Other (controls, formats with bidi overrides among them, surrogates, unassigned), line and paragraph separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINERS = frozenset("\u200c\u200d")  # harmless, and Persian words and emoji are wrong without them
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def safe(text: str, limit: int = TEXT_LIMIT) -> str:
    """Make text safe to print on one line.

    Args:
        text: any text, lone surrogates included.
        limit: characters to keep; a longer text ends with its whole length.

    Returns:
        Printable characters only: the others as `\\n`, `\\x1b` or `\\u202e`.
    """
    kept = text if len(text) <= limit else text[:limit]
    shown = kept if kept.isascii() and kept.isprintable() else "".join(map(_safe_char, kept))
    return shown if len(text) <= limit else f"{shown}... ({len(text):,} characters)"


def _safe_char(char: str) -> str:
    if unicodedata.category(char) not in _UNSAFE or char in _JOINERS:
        return char
    code = ord(char)
    escape = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return _NAMED.get(char, escape)


def one_line(error: CkptError) -> str:
    """An error's message for a terminal: its kind is left out, its length is bounded."""
    return safe(error.message, 2000)


def as_text(value: Any, limit: int = TEXT_LIMIT) -> str:
    """A value for a table cell: text as it is, anything else as compact JSON; safe and cut to `limit`."""
    plain = to_jsonable(value)
    return safe(plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False), limit)


def to_jsonable(value: Any, depth: int = 0) -> Any:
    """Turn a stored value into what json.dumps accepts.

    Messages become objects with `type` and `content`; bytes, base64. Objects of other types are
    told by type name and the beginning of their repr, since they have no JSON form of their own.
    """
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if depth >= DEPTH_LIMIT:
        return _opaque(value)
    if isinstance(value, bytes | bytearray):
        return {"type": "bytes", "length": len(value), "base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {k if isinstance(k, str) else _short_repr(k): to_jsonable(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_jsonable(item, depth + 1) for item in value]
    return _from_langgraph(value, depth) or _opaque(value)


def _from_langgraph(value: Any, depth: int) -> dict[str, Any] | None:
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__}
    if _MESSAGE in kinds:
        parts = {name: found for name in _MESSAGE_FIELDS if (found := getattr(value, name, None))}
        parts.setdefault("content", value.content)
    else:
        names = next((fields for kind, fields in _FIELDS.items() if kind in kinds), ())
        parts = {name: getattr(value, name) for name in names}
    return {name: to_jsonable(part, depth + 1) for name, part in parts.items()} or None


def without_snapshot(value: Any) -> Any:
    """The value itself where a DeltaChannel stored it whole, in LangGraph's wrapper."""
    return value.value if type(value).__name__ == "_DeltaSnapshot" else value


def _opaque(value: Any) -> dict[str, str]:
    kind = type(value)
    return {"type": f"{kind.__module__}.{kind.__qualname__}", "repr": _short_repr(value)}


def _short_repr(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # a repr written by others may raise anything; the listing goes on
        return f"<repr raised {type(error).__name__}>"
    return text if len(text) <= REPR_LIMIT else f"{text[:REPR_LIMIT]}... ({len(text):,} characters)"


def print_json(document: Any) -> None:
    """Print one JSON document, pure ASCII: every control and bidi character is a `\\u` escape.

    U+007F is the one control character that JSON leaves bare; it is escaped too.
    """
    try:
        text = json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False)
    except ValueError:
        # Infinity and NaN have no form in JSON.
        text = json.dumps(to_jsonable(document), indent=2, ensure_ascii=True, allow_nan=False)
    print(text.replace("\x7f", "\\u007f"))


def console() -> Console:
    """A console that reads no markup; wide where the output is a pipe, so that no id is folded."""
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(markup=False, highlight=False, emoji=False, width=100_000 if piped else None)


def table(columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[Any]]) -> Table:
    """A table whose cells are safe and folded, never cut.

    Args:
        columns: heading, and whether the column holds numbers.
        rows: one value per column; None is shown as an empty cell.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading, numeric in columns:
        made.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text("" if cell is None else as_text(cell)) for cell in row))
    return made
