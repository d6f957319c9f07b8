"""Real graphs: everything observed on an AgentSaver, across restarts, equals what InMemorySaver gives."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.cache.memory import InMemoryCache
from langgraph.channels import EphemeralValue, UntrackedValue
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.managed import IsLastStep, RemainingSteps
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy, Command, Overwrite, RetryPolicy, Send, StateUpdate, interrupt

from tests.agents import LogState, Saver, delta_graph, fan_out_graph, nested_graph
from tests.conftest import until
from tests.kinds import delta_lines, remembering_graph
from tests.looking import thread
from tests.worlds import World, both

CONFIG = thread("t")
HANDLE = object()
"""Something that can't be stored."""
DURABILITIES = ["sync", "async", "exit"]
Same = Callable[[Callable[[World], None]], list[Any]]


@pytest.fixture
def same(path: Path, form: str) -> Same:
    """Runs a script on both savers and compares."""
    return lambda script: both(path, form, script)


def graph_of(saver: Saver | None, nodes: dict[str, Any], edges: Any, state: Any = LogState, **options: Any) -> Any:
    """A graph of nodes and edges."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(state)
    for name, node in nodes.items():
        if isinstance(node, tuple):
            builder.add_node(name, node[0], **node[1])
        else:
            builder.add_node(name, node)
    for start, end in edges:
        builder.add_edge(start, end)
    return builder.compile(checkpointer=saver, **options)


def line(text: str) -> Callable[[Any], dict[str, Any]]:
    return lambda state: {"log": [f"{text} {len(state['log'])}"]}


# Interrupts


def two_questions(saver: Saver | None) -> Any:
    def ask(state: Any) -> dict[str, Any]:
        first = interrupt("first?")
        second = interrupt({"second?": first})
        return {"log": [first, second], "answer": f"{first}/{second}"}

    return graph_of(saver, {"ask": ask, "end": line("end")}, [(START, "ask"), ("ask", "end")])


@pytest.mark.parametrize("durability", DURABILITIES)
def test_two_interrupts_in_one_node(same: Same, durability: str) -> None:
    """Two questions of one node, answered one after the other, each in a new process."""

    def script(world: World) -> None:
        world.note_call(two_questions(world.saver), {"log": ["go"]}, CONFIG, durability=durability)
        for answer in ("one", "two"):
            world.restart()
            graph = two_questions(world.saver)
            world.note_history(graph, CONFIG)
            world.note_call(graph, Command(resume=answer), CONFIG, durability=durability)
        world.note_history(two_questions(world.saver), CONFIG)

    assert same(script)[-1][0]["values"]["answer"] == "one/two"


def test_a_used_answer(same: Same) -> None:
    """B54: what invoke(None) does after one of two answers is LangGraph's: resume writes keep order and identity."""

    def script(world: World) -> None:
        graph = two_questions(world.saver)
        world.note_call(graph, {"log": ["go"]}, CONFIG)
        world.note_call(graph, Command(resume="first"), CONFIG)
        head = world.get_tuple(CONFIG)
        world.note([(channel, value) for _, channel, value in head.pending_writes])
        world.restart()
        graph = two_questions(world.saver)
        world.note([(channel, value) for _, channel, value in world.get_tuple(CONFIG).pending_writes])
        world.note_call(graph, None, CONFIG)
        world.note_history(graph, CONFIG)

    same(script)


def test_parallel_interrupts_answered_by_a_map(same: Same) -> None:
    """Three parallel questions, beside a node that is done and isn't run again, answered by id, two and then one."""
    runs: list[str] = []

    def build(saver: Saver | None) -> Any:
        def ask(name: str) -> Any:
            return lambda state: {"log": [f"{name} got {interrupt(f'{name}?')}"]}

        def done(state: Any) -> dict[str, Any]:
            runs.append("done")
            return {"log": ["done"]}

        nodes = {name: ask(name) for name in ("a", "b", "c")} | {"done": done, "join": line("join")}
        first = ("a", "b", "c", "done")
        return graph_of(saver, nodes, [*((START, name) for name in first), *((name, "join") for name in first)])

    def script(world: World) -> None:
        def call(given: Any) -> None:
            # Parallel tasks end in any order, and so do their interrupts in the result.
            result = world.invoke(build(world.saver), given, CONFIG)
            world.note(sorted(each.value for each in result.pop("__interrupt__", ())))
            world.note(result)

        call({"log": []})
        for values in (("a?", "c?"), ("b?",)):
            world.restart()
            graph = build(world.saver)
            state = world.get_state(graph, CONFIG)
            answers = {each.id: f"answer to {each.value}" for each in state.interrupts if each.value in values}
            assert len(answers) == len(values)
            call(Command(resume=answers))
            world.note_history(graph, CONFIG)

    same(script)
    assert runs == ["done"] * 2


def test_interrupts_below_subgraphs(same: Same) -> None:
    """A question three levels down, answered in a new process, twice on one thread."""

    def script(world: World) -> None:
        for turn in range(2):
            world.note_call(nested_graph(world.saver, 3, ask=True), {"log": [f"turn {turn}"]}, CONFIG)
            world.restart()
            world.note_history(nested_graph(world.saver, 3, ask=True), CONFIG)
            world.note_call(nested_graph(world.saver, 3, ask=True), Command(resume=f"way {turn}"), CONFIG)
        world.note_history(nested_graph(world.saver, 3, ask=True), CONFIG)

    same(script)


def test_static_breakpoints(same: Same) -> None:
    """interrupt_before and interrupt_after, at compile and at call, with a state update while it stands still."""

    def build(saver: Saver | None) -> Any:
        nodes = {name: line(name) for name in ("one", "two", "three")}
        edges = [(START, "one"), ("one", "two"), ("two", "three")]
        return graph_of(saver, nodes, edges, interrupt_before=["two"], interrupt_after=["two"])

    def script(world: World) -> None:
        world.note_call(build(world.saver), {"log": ["in"]}, CONFIG)
        world.note(world.update_state(build(world.saver), CONFIG, {"log": ["by hand"]}))
        for _ in range(2):
            world.restart()
            world.note_call(build(world.saver), None, CONFIG)
            world.note_history(build(world.saver), CONFIG)
        world.note_call(build(world.saver), {"log": ["more"]}, CONFIG, interrupt_before="*")
        world.note_history(build(world.saver), CONFIG)

    same(script)


# Time travel


def subgraph_asking(saver: Saver | None) -> Any:
    """An outer node that is a graph itself: three steps, the second asks."""

    def ask(state: Any) -> dict[str, Any]:
        return {"answer": f"{interrupt('which?')} after {state['answer']}"}

    inner = graph_of(
        None,
        {"first": lambda s: {"answer": "prepared"}, "ask": ask, "last": lambda s: {"answer": s["answer"] + "!"}},
        [(START, "first"), ("first", "ask"), ("ask", "last")],
    )
    return graph_of(
        saver,
        {"enter": line("enter"), "inner": inner, "leave": lambda s: {"log": [f"left with {s['answer']}"]}},
        [(START, "enter"), ("enter", "inner"), ("inner", "leave")],
        state=TypedDict("Outer", {"log": Annotated[list[str], extend_new], "answer": str}),
    )


def extend_new(state: list[str], new: list[str]) -> list[str]:
    """Add what isn't there yet: a subgraph gives its whole log back."""
    return [*state, *(item for item in new if item not in state)]


def test_time_travel_into_a_subgraph(same: Same) -> None:
    """A subgraph's own state is read, updated and run on from, and its older checkpoints replayed and forked."""

    def script(world: World) -> None:
        world.note_call(subgraph_asking(world.saver), {"log": ["go"]}, CONFIG)
        world.restart()
        graph = subgraph_asking(world.saver)
        state = world.note(world.get_state(graph, CONFIG, subgraphs=True))
        inner = state.tasks[0].state
        world.note(world.history(graph, inner.config))
        after = world.update_state(graph, inner.config, {"answer": "updated inside"})
        world.note_call(graph, Command(resume="this"), CONFIG)
        world.note_history(graph, CONFIG)
        assert after is not None
        for old in world.history(graph, inner.config)[1:]:
            world.note_call(graph, None, old.config)
            world.note_call(graph, Command(resume="again"), CONFIG)
            world.note(world.get_state(graph, CONFIG, subgraphs=True))
        world.note_history(graph, CONFIG)

    same(script)


@pytest.mark.parametrize("build", [lambda s: nested_graph(s, 2), remembering_graph, fan_out_graph])
def test_replay_and_fork_at_every_checkpoint(same: Same, build: Any) -> None:
    """B37 a: replaying and forking from each old checkpoint of a thread, then going on from the new head."""

    def script(world: World) -> None:
        given = {"items": [1, 2, 3]} if build is fan_out_graph else {"log": ["go"]}
        world.note_call(build(world.saver), given, CONFIG)
        world.restart()
        states = world.history(build(world.saver), CONFIG)
        for state in states:
            graph = build(world.saver)
            world.note_call(graph, None, state.config)
            if build is not fan_out_graph:
                forked = world.update_state(graph, state.config, {"log": ["forked"]})
                world.note_call(graph, None, forked)
            world.note(world.get_state(graph, CONFIG))
        world.note_call(build(world.saver), given, CONFIG)
        world.note_history(build(world.saver), CONFIG)

    same(script)


def test_update_state(same: Same) -> None:
    """update_state on a new thread, as a node, at the end, with Overwrite; bulk updates; each then run on from."""

    def build(saver: Saver | None) -> Any:
        nodes = {name: line(name) for name in ("one", "two")}
        return graph_of(saver, nodes, [(START, "one"), ("one", "two")])

    def script(world: World) -> None:
        graph = build(world.saver)
        world.note(world.update_state(graph, CONFIG, {"log": ["made by hand"]}, as_node=START))
        world.note_call(graph, None, CONFIG)
        world.note(world.update_state(graph, CONFIG, {"log": ["as one"], "answer": "a"}, as_node="one"))
        world.restart()
        graph = build(world.saver)
        world.note(world.get_state(graph, CONFIG))
        world.note_call(graph, None, CONFIG)
        world.note(world.update_state(graph, CONFIG, {"log": Overwrite(["reset"])}))
        world.note(world.update_state(graph, CONFIG, None, as_node=END))
        world.note_call(graph, {"log": ["next"]}, CONFIG)
        steps = [
            [StateUpdate({"log": ["bulk in"]}, START)],
            [StateUpdate({"log": ["bulk one"]}, "one")],
            [StateUpdate({"log": ["bulk two"], "answer": "bulk"}, "two")],
        ]
        world.note(world.bulk_update(graph, thread("bulk"), steps))
        world.note_history(graph, thread("bulk"))
        world.note_call(graph, {"log": ["on"]}, thread("bulk"))
        world.note_history(graph, CONFIG)

    same(script)


# Control flow


@pytest.mark.parametrize("durability", DURABILITIES)
def test_send_with_a_failing_task(same: Same, durability: str) -> None:
    """Of a fan-out by Send one task fails: the others' writes are kept and their work isn't done again."""
    worked: list[int] = []
    broken: set[int] = set()

    def work(item: int) -> int:
        if item in broken:
            until(lambda: len(worked) == 3)
            time.sleep(0.3)
            raise ValueError(f"item {item} is broken")
        worked.append(item)
        return item * 10

    def script(world: World) -> None:
        worked.clear()
        broken.add(3)
        world.note_call(fan_out_graph(world.saver, work), {"items": [1, 2, 3, 4]}, CONFIG, durability=durability)
        world.restart()
        world.note_history(fan_out_graph(world.saver, work), CONFIG)
        broken.clear()
        world.note_call(fan_out_graph(world.saver, work), None, CONFIG, durability=durability)
        world.note_history(fan_out_graph(world.saver, work), CONFIG)
        world.note(sorted(worked))

    assert same(script)[-1] == [1, 2, 3, 4]


def test_commands(same: Same) -> None:
    """Command with goto, update, several targets, Send, and graph=PARENT out of a subgraph."""

    def build(saver: Saver | None) -> Any:
        inner = graph_of(
            None,
            {"leave": lambda s: Command(graph=Command.PARENT, goto="caught", update={"log": ["from below"]})},
            [(START, "leave")],
        )

        def route(state: Any) -> Command[Any]:
            return Command(goto=["left", Send("sent", {"log": ["sent state"]})], update={"log": ["routed"]})

        nodes = {
            "route": (route, {"destinations": ("left", "sent")}),
            "left": lambda s: Command(goto="inner", update={"answer": "left"}),
            "sent": line("sent"),
            "inner": inner,
            "caught": lambda s: Command(goto=END, update={"log": [f"caught {s['answer']}"]}),
        }
        return graph_of(saver, nodes, [(START, "route")])

    def script(world: World) -> None:
        for turn in range(2):
            world.note_call(build(world.saver), {"log": [f"in {turn}"]}, CONFIG)
            world.restart()
            world.note_history(build(world.saver), CONFIG)
        world.note_call(build(world.saver), Command(update={"log": ["command in"]}, goto="left"), CONFIG)
        world.note_history(build(world.saver), CONFIG)

    same(script)


def test_errors_and_resume(same: Same) -> None:
    """A node that raises leaves an error in the state; invoke(None) in a new process runs that node alone."""
    fails = [True]
    ran: list[str] = []

    def build(saver: Saver | None) -> Any:
        def shaky(state: Any) -> dict[str, Any]:
            ran.append("shaky")
            if fails[0]:
                until(lambda: "sound" in ran)
                time.sleep(0.3)
                raise RuntimeError("not yet")
            return {"log": ["shaky"], "answer": "came through"}

        def sound(state: Any) -> dict[str, Any]:
            ran.append("sound")
            return {"log": ["sound"]}

        nodes = {"start": line("start"), "shaky": shaky, "sound": sound, "end": line("end")}
        both = [(one, other) for name in ("shaky", "sound") for one, other in (("start", name), (name, "end"))]
        return graph_of(saver, nodes, [(START, "start"), *both])

    def script(world: World) -> None:
        fails[0] = True
        ran.clear()
        for _ in range(2):
            world.note_call(build(world.saver), {"log": ["go"]} if not ran else None, CONFIG)
            world.restart()
            world.note_history(build(world.saver), CONFIG)
        fails[0] = False
        world.note_call(build(world.saver), None, CONFIG)
        world.note_history(build(world.saver), CONFIG)
        world.note([ran.count("shaky"), ran.count("sound")])

    assert same(script)[-1] == [3, 1]


def test_error_handlers_and_retries(same: Same) -> None:
    """A node's error handler, a retry policy and a cached node leave the same states and histories."""
    calls: dict[str, int] = {}

    def build(saver: Saver | None, cache: Any) -> Any:
        def flaky(state: Any) -> dict[str, Any]:
            calls["flaky"] = calls.get("flaky", 0) + 1
            if calls["flaky"] < 3:
                raise ConnectionError("again")
            return {"log": [f"flaky after {calls['flaky']}"]}

        def doomed(state: Any) -> dict[str, Any]:
            raise ValueError("never")

        def costly(state: Any) -> dict[str, Any]:
            calls["costly"] = calls.get("costly", 0) + 1
            return {"answer": "costly"}

        retry = RetryPolicy(max_attempts=3, initial_interval=0.001, jitter=False)
        nodes = {
            "flaky": (flaky, {"retry_policy": retry}),
            "doomed": (doomed, {"error_handler": lambda s: Command(update={"log": ["handled"]}, goto="costly")}),
            "costly": (costly, {"cache_policy": CachePolicy(key_func=lambda *a, **k: "same key")}),
            "end": line("end"),
        }
        edges = [(START, "flaky"), ("flaky", "doomed"), ("doomed", "costly"), ("costly", "end")]
        return graph_of(saver, nodes, edges, cache=cache)

    def script(world: World) -> None:
        calls.clear()
        cache = InMemoryCache()
        for turn in range(2):
            world.note_call(build(world.saver, cache), {"log": [f"turn {turn}"]}, CONFIG)
            world.restart()
            world.note_history(build(world.saver, cache), CONFIG)
        world.note(dict(calls))

    assert same(script)[-1]["costly"] == 1


def test_channels_that_are_not_kept(same: Same) -> None:
    """Ephemeral and untracked channels and managed values are in no later state; the others are whole."""

    class State(TypedDict):
        log: Annotated[list[str], operator.add]
        passing: Annotated[str, EphemeralValue(str)]
        handle: Annotated[Any, UntrackedValue(object)]
        last: IsLastStep
        left: RemainingSteps

    def one(state: Any) -> dict[str, Any]:
        return {"log": [f"one: {state.get('passing')}, {state['last']}"], "passing": "for two", "handle": HANDLE}

    def two(state: Any) -> dict[str, Any]:
        answer = interrupt("go?") if state["log"][0] == "ask" else "no question"
        return {"log": [f"two: {state.get('passing')}, {state.get('handle') is not None}, {answer}"]}

    def build(saver: Saver | None) -> Any:
        return graph_of(saver, {"one": one, "two": two}, [(START, "one"), ("one", "two")], state=State)

    def script(world: World) -> None:
        for name in ("ask", "don't"):
            world.note_call(build(world.saver), {"log": [name], "passing": "for one"}, thread(name))
            world.restart()
            world.note_call(build(world.saver), Command(resume="yes"), thread(name))
            world.note_history(build(world.saver), thread(name))

    same(script)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_durability(same: Same, durability: str) -> None:
    """All three durability modes: new input, a nested graph, a failed node and its resume."""

    def script(world: World) -> None:
        for turn in range(3):
            world.note_call(nested_graph(world.saver, 2), {"log": [f"turn {turn}"]}, CONFIG, durability=durability)
            world.restart()
        world.note_history(nested_graph(world.saver, 2), CONFIG)

    same(script)


def test_joins(same: Same) -> None:
    """Edges that wait for several nodes (a set in the state), over several steps and a restart in between.

    In durability="sync" only: LangGraph hands over the live set, which the next step can change before an async put.
    """

    def build(saver: Saver | None) -> Any:
        nodes = {name: line(name) for name in ("a", "b", "b2", "c", "end")}
        edges = [(START, "a"), (START, "b"), (START, "c"), ("b", "b2"), (["a", "b2", "c"], "end")]
        return graph_of(saver, nodes, edges, interrupt_before=["b2"])

    def script(world: World) -> None:
        for turn in range(2):
            world.note_call(build(world.saver), {"log": [f"turn {turn}"]}, CONFIG, durability="sync")
            world.restart()
            world.note_call(build(world.saver), None, CONFIG, durability="sync")
            world.note_history(build(world.saver), CONFIG)

    same(script)


def test_functional_api(same: Same) -> None:
    """@entrypoint and @task: finished tasks aren't run again after an interrupt; previous and final are kept."""
    ran: list[int] = []

    def build(saver: Saver | None) -> Any:
        @task
        def double(number: int) -> int:
            ran.append(number)
            return number * 2

        @task
        def fail_once(number: int) -> int:
            ran.append(-number)
            return number

        @entrypoint(checkpointer=saver)
        def workflow(given: dict[str, Any], *, previous: Any = None) -> Any:
            doubled = [future.result() for future in [double(number) for number in given["numbers"]]]
            answer = interrupt({"sum": sum(doubled), "previous": previous})
            total = sum(doubled) + fail_once(answer).result()
            return entrypoint.final(value={"total": total, "before": previous}, save={"kept": total})

        return workflow

    def script(world: World) -> None:
        ran.clear()
        for turn in range(2):
            world.note_call(build(world.saver), {"numbers": [1, 2, 3 + turn]}, CONFIG, durability="sync")
            world.restart()
            world.note_history(build(world.saver), CONFIG)
            # LangGraph adds the interrupts to a result that is stored too, with "async" maybe before it is.
            world.note_call(build(world.saver), Command(resume=10 + turn), CONFIG, durability="sync")
        world.note_history(build(world.saver), CONFIG)
        world.note(sorted(ran))

    # An async graph runs sync tasks through an executor, so one script serves both forms.
    assert same(script)[-1] == [-11, -10, 1, 1, 2, 2, 3, 4]


# DeltaChannel


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("frequency", [1, 3, 1000])
def test_delta_channels(same: Same, frequency: int, durability: str) -> None:
    """B56: DeltaChannels over turns and restarts: live result, every stored state, a fork and its old tip."""
    build = delta_lines(frequency)

    def script(world: World) -> None:
        for turn in range(4):
            live = world.note_call(build(world.saver), {"log": [f"turn {turn}"]}, CONFIG, durability=durability)
            world.restart()
            assert world.get_state(build(world.saver), CONFIG).values == live
        states = world.note_history(build(world.saver), CONFIG)
        old = states[len(states) // 2].config
        world.note_call(build(world.saver), {"log": ["B from the older config"]}, old, durability=durability)
        world.note(world.get_state(build(world.saver), states[0].config).values)
        forked = world.update_state(build(world.saver), states[-2].config, {"log": ["by hand"]})
        world.note(world.get_state(build(world.saver), forked).values)
        world.note(world.get_state(build(world.saver), states[0].config).values)
        world.note_call(build(world.saver), {"log": ["on from the fork"]}, CONFIG, durability=durability)
        world.restart()
        world.note_history(build(world.saver), CONFIG)

    same(script)


def test_delta_parallel_order(same: Same) -> None:
    """B56: eight parallel nodes that write one DeltaChannel: what is reloaded is what was live, six times."""

    def build(saver: Saver | None) -> Any:
        state = delta_lines(1000)(None).builder.state_schema
        nodes = {f"n{number}": line(f"n{number}") for number in (3, 1, 7, 0, 5, 2, 6, 4)}
        return graph_of(saver, nodes, [(START, name) for name in nodes], state=state)

    def script(world: World) -> None:
        for turn in range(6):
            live = world.note_call(build(world.saver), {"log": [f"turn {turn}"]}, CONFIG)
            world.restart()
            assert world.note(world.get_state(build(world.saver), CONFIG).values) == live

    same(script)


def test_delta_messages_and_files(same: Same) -> None:
    """DeltaChannels of messages and of a files dict, as deepagents keeps them, with updates by hand in between."""

    def script(world: World) -> None:
        for turn in range(4):
            world.note_call(delta_graph(world.saver, 5), {"messages": [("user", f"turn {turn}")]}, CONFIG)
            world.restart()
            graph = delta_graph(world.saver, 5)
            world.update_state(graph, CONFIG, {"files": {f"by hand {turn}": "text"}}, as_node="file")
        world.note_history(delta_graph(world.saver, 5), CONFIG)

    same(script)


# Streams and stores


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_streams(same: Same, durability: str) -> None:
    """Every stream mode gives the same events, checkpoints and debug included, before and after an interrupt."""
    modes = ["values", "updates", "checkpoints", "tasks", "debug", "custom"]

    def script(world: World) -> None:
        given: Any = {"log": ["go"]}
        for _ in range(2):
            graph = nested_graph(world.saver, 2, ask=True)
            options = {"stream_mode": modes, "subgraphs": True, "durability": durability}
            world.note(world.stream(graph, given, CONFIG, **options))
            world.restart()
            given = Command(resume="this way")
        world.note_history(nested_graph(world.saver, 2, ask=True), CONFIG)

    same(script)


def test_store_beside_the_checkpointer(same: Same) -> None:
    """A store is used by the nodes while the checkpointer keeps the thread; neither gets in the other's way."""

    def build(saver: Saver | None, store: Any) -> Any:
        def remember(state: Any, *, store: Any) -> dict[str, Any]:
            before = store.get(("user",), "seen")
            count = before.value["count"] + 1 if before else 1
            store.put(("user",), "seen", {"count": count})
            return {"log": [f"seen {count} times"]}

        return graph_of(saver, {"remember": remember}, [(START, "remember")], store=store)

    def script(world: World) -> None:
        store = InMemoryStore()
        for turn in range(3):
            world.note_call(build(world.saver, store), {"log": ["go"]}, thread(f"t{turn % 2}"))
            world.restart()
        for turn in range(2):
            world.note_history(build(world.saver, store), thread(f"t{turn}"))

    same(script)
