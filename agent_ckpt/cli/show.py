"""`agent-ckpt show`: one thread's head (latest checkpoint) and its history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_ckpt.cli import render
from agent_ckpt.cli.threads import AsJson, Database, Key
from agent_ckpt.errors import CorruptionError, FormatError, UsageError

if TYPE_CHECKING:
    from agent_ckpt import AgentSaver

MESSAGES_SHOWN = 20
NAMESPACES_FROM = 200
UNREADABLE = (CorruptionError, FormatError)
_BRANCH = "branch:to:"
_JOIN = "join:"
_TASKS = "__pregel_tasks"
_INPUT = "__start__"
# LangGraph's own channels: triggers and scratch, told by `next`, not part of the graph's state.
_INTERNAL = (_BRANCH, _JOIN, _TASKS, _INPUT, "__pregel_")


@dataclass(slots=True)
class Report:
    """What is shown of a thread; the JSON document has these keys."""

    thread_id: str
    namespace: str
    checkpoint_id: str | None = None
    next: list[str] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    pending_writes: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    written_by: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


def show(
    db: Database,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id.")],
    as_json: AsJson = False,
    key: Key = None,
    ns: Annotated[str, typer.Option("--ns", help="The namespace of a subgraph; the root graph's is empty.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Rows of history to show.")] = 20,
) -> None:
    """Show a thread: messages, other values, pending writes, next nodes and history, newest first.

    What is damaged is named, the rest is shown, and the exit code is 5.
    """
    from agent_ckpt import AgentSaver

    with AgentSaver(db, create=False, key=key, on_unresolved="keep", on_schema_change="ignore") as saver:
        report = build(saver, db, thread, ns, limit)
    if as_json:
        render.print_json(asdict(report))
    else:
        _print(report)
    if report.errors:
        raise typer.Exit(CorruptionError.exit_code)


def build(saver: AgentSaver, db: str, thread: str, ns: str, limit: int) -> Report:
    """Read a thread. What can't be decoded becomes a line in `errors`; the rest is shown.

    Raises:
        UsageError: for a thread that isn't there, or a namespace that it doesn't have.
    """
    if not saver.exists(thread):
        raise UsageError(f"no thread {thread!r} in {db}; `agent-ckpt threads` lists the threads", thread_id=thread)
    report = Report(thread_id=thread, namespace=ns)
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}
    try:
        head = saver.get_tuple(config)
    except UNREADABLE as error:
        report.errors.append(f"the head can't be read: {error.message}")
    else:
        if head is None and ns:
            raise UsageError(
                f"thread {thread!r} in {db} has no namespace {ns!r}; among its newest checkpoints are "
                f"{', '.join(map(repr, _namespaces(saver, thread)))}",
                thread_id=thread,
            )
        if head is not None:
            _describe(head, report)
            report.written_by = saver.written_by(head.config)
            try:
                _describe_deltas(saver, head, report)
            except UNREADABLE as error:
                report.errors.append(f"the delta channels can't be read: {error.message}")
    report.history.extend(_history(saver, config, limit, report.errors))
    return report


def _describe(head: Any, report: Report) -> None:
    stored = head.checkpoint["channel_values"]
    values = {name: render.without_snapshot(value) for name, value in stored.items()}
    report.checkpoint_id = head.checkpoint["id"]
    report.next = next_nodes(head.checkpoint)
    for name, value in values.items():
        if name == "messages" and isinstance(value, list):
            report.messages = render.to_jsonable(value)
        elif not name.startswith(_INTERNAL):
            report.values[name] = render.to_jsonable(value)
    report.pending_writes = [
        {"task_id": task_id, "channel": channel, "value": render.to_jsonable(value)}
        for task_id, channel, value in head.pending_writes or []
    ]


def _describe_deltas(saver: AgentSaver, head: Any, report: Report) -> None:
    """Tell the DeltaChannels, whose values are not in the checkpoint: a snapshot and the writes after it.

    Their reducers are part of the graph, so other values than messages are told in these two parts.
    """
    since_snapshot = head.metadata.get("counters_since_delta_snapshot") or {}
    names = [name for name in since_snapshot if name not in head.checkpoint["channel_values"]]
    if not names:
        return
    for name, entry in saver.get_delta_channel_history(config=head.config, channels=names).items():
        start = render.without_snapshot(entry.get("seed"))
        writes = [value for _, _, value in entry["writes"]]
        if name == "messages":
            report.messages = _merged([start, *writes])
        else:
            report.values[name] = {"snapshot": render.to_jsonable(start), "then_written": render.to_jsonable(writes)}


def _merged(writes: list[Any]) -> list[Any]:
    """Messages in order; a later one with the same id replaces the earlier, a "remove" takes it away."""
    merged: dict[Any, Any] = {}
    for write in writes:
        for number, message in enumerate(write if isinstance(write, list) else [write] if write is not None else []):
            plain = render.to_jsonable(message)
            fields = plain if isinstance(plain, dict) else {}
            key = fields.get("id") or (len(merged), number)
            if fields.get("type") == "remove":
                merged.pop(key, None)
            else:
                merged[key] = plain
    return list(merged.values())


def next_nodes(checkpoint: Mapping[str, Any]) -> list[str]:
    """The nodes that a run would start with, as far as the checkpoint tells without its graph.

    A node is next if a channel that triggers it holds a value the node has not seen, or if a Send
    waits for it. Triggers that only the graph knows (a node subscribed to a state channel) are missed;
    a node whose result is already among the pending writes is named, though it would not run again.
    """
    values, versions, seen = (checkpoint[k] for k in ("channel_values", "channel_versions", "versions_seen"))
    found: list[str] = []
    for channel, value in values.items():
        if channel == _INPUT:
            node = _INPUT
        elif channel.startswith(_BRANCH):
            node = channel.removeprefix(_BRANCH)
        elif channel.startswith(_JOIN) and ":" in channel[len(_JOIN) :]:
            sources, _, node = channel.removeprefix(_JOIN).rpartition(":")
            if set(value or ()) != set(sources.split("+")):
                continue
        else:
            continue
        last: Any = seen.get(node, {}).get(channel)
        version: Any = versions.get(channel)
        if version is not None and (last is None or version > last):
            found.append(node)
    waiting = values.get(_TASKS)
    found += [getattr(send, "node", "?") for send in waiting] if isinstance(waiting, list | tuple) else []
    return found


def _namespaces(saver: AgentSaver, thread: str) -> list[str]:
    config: Any = {"configurable": {"thread_id": thread}}
    found = saver.list(config, limit=NAMESPACES_FROM)
    return sorted({item.config["configurable"]["checkpoint_ns"] for item in found})


def _history(saver: AgentSaver, config: Any, limit: int, errors: list[str]) -> Iterator[dict[str, Any]]:
    before: Any = None
    left = limit
    place = config["configurable"]
    undone = set(saver.rolled_back(place["thread_id"], checkpoint_ns=place["checkpoint_ns"]))
    while left:
        try:
            for item in saver.list(config, before=before, limit=left):
                left -= 1
                parent = item.parent_config
                yield {
                    "checkpoint_id": item.checkpoint["id"],
                    "step": item.metadata.get("step"),
                    "source": item.metadata.get("source"),
                    "parent": parent["configurable"]["checkpoint_id"] if parent else None,
                    "created": item.checkpoint["ts"],
                    "rolled_back": item.checkpoint["id"] in undone,
                }
            return
        except UNREADABLE as error:
            errors.append(f"history: {error.message}")
            # A damaged checkpoint that says its id is stepped over; the older ones are shown.
            bad = error.fields.get("checkpoint_id")
            if bad is None or (before and before["configurable"]["checkpoint_id"] == bad):
                return
            left -= 1
            before = {"configurable": {**config["configurable"], "checkpoint_id": bad}}


def _print(report: Report) -> None:
    out = render.console()

    def section(title: str, columns: list[tuple[str, bool]], rows: list[tuple[Any, ...]]) -> None:
        if rows:
            out.print(f"\n{title}", style="bold")
            out.print(render.table(columns, rows))

    place = f", namespace {render.safe(report.namespace)}" if report.namespace else ""
    out.print(f"thread {render.safe(report.thread_id)}{place}")
    out.print(f"head   {render.safe(report.checkpoint_id or 'none')}")
    if report.written_by:
        versions = ", ".join(f"{name} {version}" for name, version in report.written_by.items())
        out.print(f"stored by {render.safe(versions)}")
    out.print(f"next   {render.safe(', '.join(report.next) or 'none known')}")
    first = max(0, len(report.messages) - MESSAGES_SHOWN)
    title = f"messages {first + 1}-{len(report.messages)} of {len(report.messages)}" if first else "messages"
    shown = [_message_row(number, message) for number, message in enumerate(report.messages, 1)][first:]
    section(title, [("", True), ("type", False), ("content", False), ("tool calls", False)], shown)
    section("values", [("channel", False), ("value", False)], list(report.values.items()))
    writes = [(write["task_id"], write["channel"], write["value"]) for write in report.pending_writes]
    section("pending writes", [("task", False), ("channel", False), ("value", False)], writes)
    columns = [("checkpoint", False), ("step", True), ("source", False), ("parent", False)]
    rows: list[tuple[Any, ...]] = [(h["checkpoint_id"], h["step"], h["source"], h["parent"]) for h in report.history]
    if any(h["rolled_back"] for h in report.history):
        columns.append(("", False))
        rows = [
            (*row, "rolled back" if h["rolled_back"] else None) for row, h in zip(rows, report.history, strict=True)
        ]
    section("history, newest first", columns, rows)
    section("can't be shown", [("error", False)], [(line,) for line in report.errors])


def _message_row(number: int, message: Any) -> tuple[Any, ...]:
    if not isinstance(message, dict):
        return number, None, message, None
    calls = [
        f"{call.get('name')} {render.as_text(call.get('args'), 200)}"
        for call in message.get("tool_calls") or ()
        if isinstance(call, dict)
    ]
    return number, message.get("type"), message.get("content"), "; ".join(calls) or None
