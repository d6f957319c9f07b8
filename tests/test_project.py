"""The project itself: style, types, layers, where SQL stands, what is documented, and the built wheel."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import agent_ckpt
from agent_ckpt.cli.app import app
from agent_ckpt.options import ENV_PREFIX, Options

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "agent_ckpt"
README = ROOT / "README.md"
WATCHDOG_S = 600.0

LINES_PER_MODULE = 400
LINES_PER_FUNCTION = 70
REPEATED_RUN = 6
REPEATED_SHARE = 0.05

QUERY = re.compile(
    r"\b(SELECT\s+\S|INSERT\s+(OR\s+\w+\s+)?INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|REPLACE\s+INTO|WITH\s+RECURSIVE"
    r"|(CREATE|DROP|ALTER)\s+(UNIQUE\s+|TEMP\s+|VIRTUAL\s+)?(TABLE|INDEX|VIEW|TRIGGER))"
)
CONTROL = re.compile(r"\s*(PRAGMA|BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE)\b")
EXECUTING = {"execute", "executemany", "executescript", "control"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def modules(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders or (PACKAGE,) for path in folder.rglob("*.py"))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run(*command: str, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, timeout=WATCHDOG_S
    )


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a development tool of this environment on the tree."""
    return run(str(Path(sysconfig.get_path("scripts")) / name), *arguments)


def texts(tree: ast.Module) -> Iterator[ast.Constant]:
    """Every string constant that is no docstring; the fixed parts of f-strings too."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | Definition) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node


def blocks(language: str, text: str | None = None) -> list[str]:
    """The fenced blocks of one language in the README, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text or README.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def marked(mark: str) -> str:
    """The README's fenced block that follows the comment with this mark."""
    found = re.search(rf"^<!-- {mark} -->\n```\w+\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert found, f"no block is marked {mark!r} in the README"
    return found[1]


# Style, types and layers


@pytest.mark.parametrize("arguments", [("check",), ("format", "--check")], ids=" ".join)
def test_ruff(arguments: tuple[str, ...]) -> None:
    """The linter finds nothing and every file is formatted."""
    done = tool("ruff", *arguments, ".")
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_strict() -> None:
    """The package type-checks under mypy's strict mode."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]
    assert config["strict"] is True
    assert config["packages"] == ["agent_ckpt"]
    done = tool("mypy")
    assert done.returncode == 0, done.stdout + done.stderr


def test_import_contracts() -> None:
    """Imports only point down, and drivers and LangGraph are imported only in their homes."""
    done = tool("lint-imports", "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", done.stdout), done.stdout


# SQL


def sql_in_python(path: Path) -> Iterator[str]:
    """SQL in one module, as "line: text"; inside the adapter transaction control and PRAGMA are no finding."""
    tree = tree_of(path)
    in_adapter = PACKAGE / "sqlite" in path.parents
    for node in texts(tree):
        if QUERY.search(node.value) or (not in_adapter and CONTROL.match(node.value)):
            yield f"{node.lineno}: {node.value!r}"
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in EXECUTING):
            continue
        for node in (part for argument in call.args for part in ([argument, *getattr(argument, "values", [])][:2])):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and not CONTROL.match(node.value):
                yield f"{node.lineno}: {node.value!r}"


def test_no_sql_in_python() -> None:
    """SQL stands in queries.sql alone; the adapter's Python holds only PRAGMA and transaction control."""
    found = [f"{name_of(path)}:{line}" for path in modules() for line in sql_in_python(path)]
    assert not found, found


def test_the_sql_check_sees_sql(tmp_path: Path) -> None:
    """The check above finds a query, an f-string that begins one, and a statement that is executed."""
    path = tmp_path / "m.py"
    path.write_text('"""SELECT 1 is only told."""\na = "SELECT 1"\nb = f"DELETE FROM {a}"\nc.execute("VACUUM")\n')
    assert [line[0] for line in sql_in_python(path)] == ["2", "3", "4"]


def test_every_query_is_used_and_every_used_one_exists() -> None:
    """Each block of queries.sql is named by a program or the adapter, and no program names one that isn't there."""
    used: dict[str, str] = {}
    for path in modules():
        for node in ast.walk(tree_of(path)):
            name: ast.expr | None = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Statement":
                name = node.args[0]
            elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "QUERIES":
                if isinstance(node.slice, ast.Name):
                    continue  # the driver, which looks up what a program named
                name = node.slice
            if name is not None:
                assert isinstance(name, ast.Constant), f"{name_of(path)}:{node.lineno} names no block by a constant"
                used[str(name.value)] = f"{name_of(path)}:{node.lineno}"
    blocks = set(re.findall(r"^-- name: (\w+)$", (PACKAGE / "sqlite" / "queries.sql").read_text(), re.MULTILINE))
    assert sorted(blocks - set(used)) == [], "blocks that nothing uses"
    assert {name: where for name, where in used.items() if name not in blocks} == {}


# Size, repetition and docstrings


def test_modules_and_functions_are_short() -> None:
    """No module of the package or the examples is longer than 400 lines, no function than 70."""
    long: list[str] = []
    for path in modules(PACKAGE, ROOT / "examples"):
        count = len(path.read_text("utf-8").splitlines())
        if count > LINES_PER_MODULE:
            long.append(f"{name_of(path)}: {count} lines")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, Function) and (count := (node.end_lineno or 0) - node.lineno + 1) > LINES_PER_FUNCTION:
                long.append(f"{name_of(path)}:{node.lineno} {node.name}: {count} lines")
    assert not long, long


def code_lines(path: Path) -> list[tuple[int, str]]:
    """Number and folded text of each code line: no blanks, comments, docstrings, imports or bare punctuation."""
    tree = tree_of(path)
    left_out: set[int] = set()
    for node in ast.walk(tree):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(path.read_text("utf-8").splitlines(), 1)
    folded = ((number, " ".join(line.split())) for number, line in lines if number not in left_out)
    return [(number, line) for number, line in folded if re.search(r"\w", line) and not line.startswith("#")]


def repeated(paths: list[Path]) -> tuple[set[tuple[str, int]], int]:
    """The lines that stand in runs of REPEATED_RUN equal lines found more than once; and how many there are in all."""
    places: dict[tuple[str, ...], list[list[tuple[str, int]]]] = defaultdict(list)
    total = 0
    for path in paths:
        lines = code_lines(path)
        total += len(lines)
        for at in range(len(lines) - REPEATED_RUN + 1):
            window = lines[at : at + REPEATED_RUN]
            places[tuple(line for _, line in window)].append([(str(path), number) for number, _ in window])
    return {place for found in places.values() if len(found) > 1 for window in found for place in window}, total


def test_little_code_is_repeated() -> None:
    """At most 5 % of the package's code lines stand in repeated runs of six lines or more."""
    found, total = repeated(modules())
    assert total > 3000
    assert len(found) <= REPEATED_SHARE * total, f"{len(found)} of {total}: {sorted(found)}"


def test_the_repetition_check_sees_repetition(tmp_path: Path) -> None:
    """The check above counts each line of a copy, however it is indented, and nothing that stands once."""
    body = [f"a{number} = {number}" for number in range(8)]
    (tmp_path / "one.py").write_text("\n".join(["b = 1", *body]))
    (tmp_path / "two.py").write_text("if True:\n    pass\n")
    assert repeated(modules(tmp_path)) == (set(), 11)
    (tmp_path / "two.py").write_text("\n".join(["if True:", *(f"    {line}" for line in body)]))
    found, total = repeated(modules(tmp_path))
    assert (len(found), total) == (16, 18)


def without_docstring() -> Iterator[str]:
    """Names that must have a docstring of their own and have none."""
    for path in modules():
        tree = tree_of(path)
        if ast.get_docstring(tree) is None:
            yield name_of(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and ast.get_docstring(node) is None:
                yield f"{name_of(path)}:{node.lineno} {node.name}"
    for name in agent_ckpt.__all__:
        found = getattr(agent_ckpt, name)
        for part, value in vars(found).items() if isinstance(found, type) else ():
            callable_here = inspect.isroutine(value) or isinstance(value, property | classmethod)
            if callable_here and not part.startswith("_") and not inspect.cleandoc(value.__doc__ or ""):
                yield f"{name}.{part}"


def test_everything_public_has_a_docstring() -> None:
    """Every module and class of the package, and all that a user can call, says what it is."""
    missing = list(without_docstring())
    assert not missing, missing


# Tests


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def named(node: ast.AST) -> set[str]:
    """Names and attributes that occur inside a node."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return names | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def test_every_test_says_what_it_proves_and_checks_something() -> None:
    """Each test has a docstring, and an assert or pytest.raises in it or in a helper or fixture that it names."""
    trees = {path: tree_of(path) for path in modules(ROOT / "tests")}
    # By name: which helper or fixture checks something, itself or through another one.
    helpers = {each.name: each for tree in trees.values() for each in functions(tree)}
    checking = {"raises", "warns"}
    while True:
        more = {
            name
            for name, node in helpers.items()
            if name not in checking
            and (any(isinstance(each, ast.Assert) for each in ast.walk(node)) or named(node) & checking)
        }
        if not more:
            break
        checking |= more
    faults: list[str] = []
    for path, tree in trees.items():
        if not path.name.startswith("test_"):
            continue
        for node in functions(tree):
            if node.name.startswith("test_"):
                where = f"{name_of(path)}:{node.lineno} {node.name}"
                if ast.get_docstring(node) is None:
                    faults.append(f"{where}: no docstring")
                if node.name not in checking:
                    faults.append(f"{where}: checks nothing")
    assert not faults, "\n".join(faults)


# Documents


def test_every_option_is_in_the_readme() -> None:
    """The README's table names each option, the serializer and the environment's prefix."""
    text = README.read_text("utf-8")
    names = [field.name for field in dataclasses.fields(Options)]
    assert [name for name in [*names, "serde"] if f"| `{name}` |" not in text] == []
    assert ENV_PREFIX in text


def test_every_command_is_in_the_readme() -> None:
    """The README shows each subcommand of `agent-ckpt`."""
    names = [each.name for each in app.registered_commands]
    assert names
    text = README.read_text("utf-8")
    assert [name for name in names if f"agent-ckpt {name}" not in text] == []


def test_documents_lead_to_files_that_exist() -> None:
    """Each link and each test file that README and docs name is there, and no figure was left open."""
    for path in (README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text("utf-8")
        links = [link.partition("#")[0] for link in re.findall(r"\]\((?!https?:|#)([^)]+)\)", text)]
        links = [str((path.parent / link).resolve()) for link in links]
        links += [str(ROOT / name) for name in re.findall(r"`((?:tests|examples|agent_ckpt)/[\w/]+\.\w+)`", text)]
        assert [link for link in links if not Path(link).exists()] == [], name_of(path)
        assert not re.search(r"\bTBD", text), f"{name_of(path)} has figures that are still to be filled in"


def test_the_readmes_example_runs(tmp_path: Path) -> None:
    """The example runs as it stands, twice: the second process finds what the first one stored."""
    code = marked("example")
    assert len(code.strip().splitlines()) <= 12
    for expected in (1, 2):
        done = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(ROOT))
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == str({"turns": expected})


OVERTAKEN = """
import threading
class Late(AgentSaver):
    def get_tuple(self, config):
        found = super().get_tuple(config)
        if overtaking:
            overtaking.pop().start()
            other.join()
        return found
other = threading.Thread(target=lambda: agent.invoke({}, config))
overtaking = [other]
print(send(graph.compile(checkpointer=Late("agent.db")), {}))
"""


def test_the_readmes_conflict_example_runs(tmp_path: Path) -> None:
    """The code for a conflict runs as it stands: overtaken after its restore, the run is told, and its retry counts."""
    code = marked("example") + marked("conflict") + OVERTAKEN
    done = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    first, told, last = done.stdout.splitlines()
    assert (first, last) == (str({"turns": 1}), str({"turns": 3}))
    assert re.fullmatch(r"stale [1-9]\d* [1-9]\d* False", told)


def test_ci_runs_the_readmes_test_command() -> None:
    """CI takes its command from the README, so that the two can't drift apart."""
    command = marked("test command").strip()
    assert command.startswith("python3 -m venv .venv && ")
    assert command.endswith(".venv/bin/python -m pytest -n auto")
    assert "<!-- test command -->" in (ROOT / ".ci" / "run").read_text("utf-8")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


# What is built and imported


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the tree as a user's pip builds it."""
    folder = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT), cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """Types, SQL and dictionary are in the wheel, every module is, and neither tests nor caches are."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    inside = {name for name in names if name.startswith("agent_ckpt/")}
    wanted = {str(path.relative_to(ROOT)) for path in modules()}
    wanted |= {"agent_ckpt/py.typed", "agent_ckpt/sqlite/queries.sql", "agent_ckpt/codec/factory0.dict"}
    assert inside == wanted
    assert {name.partition("/")[0].rpartition(".")[2] for name in names - inside} == {"dist-info"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


WHEEL_TRIED = """
import json, agent_ckpt
from typing import TypedDict
from agent_ckpt import AgentSaver
from langgraph.graph import START, StateGraph
class State(TypedDict):
    n: int
graph = StateGraph(State).add_node("add", lambda state: {"n": state["n"] + 1}).add_edge(START, "add")
config = {"configurable": {"thread_id": "t"}}
with AgentSaver("agent.db") as saver:
    graph.compile(checkpointer=saver).invoke({"n": 1}, config)
with AgentSaver("agent.db", create=False) as saver:
    n = saver.get_tuple(config).checkpoint["channel_values"]["n"]
    print(json.dumps([agent_ckpt.__file__, agent_ckpt.__version__, n, bool(saver.verify())]))
"""


def test_the_wheel_works_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    """Installed in a venv of its own, a graph runs on the saver and the command answers."""
    venv = tmp_path / "venv"
    assert run(sys.executable, "-m", "venv", "--without-pip", str(venv)).returncode == 0
    python = venv / "bin" / "python"
    done = run(sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", str(wheel))
    assert done.returncode == 0, done.stderr
    (site,) = venv.glob("lib/python*/site-packages")
    # The dependencies of this environment, behind what was installed here.
    (site / "dependencies.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    done = run(str(python), "-c", WHEEL_TRIED, cwd=tmp_path, PYTHONPATH="")
    assert done.returncode == 0, done.stderr
    where, version, n, sound = json.loads(done.stdout)
    assert Path(where).is_relative_to(venv)
    assert version == tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert (n, sound) == (2, True)
    done = run(str(venv / "bin" / "agent-ckpt"), "--help", cwd=tmp_path, PYTHONPATH="")
    assert done.returncode == 0, done.stderr
    assert "threads" in done.stdout
    assert "show" in done.stdout


def test_importing_the_package_costs_nothing() -> None:
    """`import agent_ckpt` and its errors import neither LangGraph nor a driver; the saver is imported on first use."""
    code = (
        "import sys, agent_ckpt; agent_ckpt.ThreadConflictError\n"
        "heavy = {'langgraph', 'langchain_core', 'pydantic', 'sqlite3', 'aiosqlite'}\n"
        "print(*sorted(heavy & set(sys.modules)), sep=',')\n"
        "agent_ckpt.AgentSaver; print('langgraph' in sys.modules)"
    )
    done = run(sys.executable, "-c", code, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["", "True"]
