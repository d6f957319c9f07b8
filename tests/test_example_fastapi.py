"""The FastAPI example: two server processes share one file, seen by a real HTTP client."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from agent_ckpt.errors import BusyError

EXAMPLES = Path(__file__).parent.parent / "examples"
START_S = 90.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_server(db: Path, log: Path) -> tuple[subprocess.Popen[bytes], str]:
    port = free_port()
    path = os.pathsep.join(filter(None, [str(EXAMPLES.parent), os.environ.get("PYTHONPATH")]))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "fastapi_app:app", "--app-dir", str(EXAMPLES), "--port", str(port)],
            env={**os.environ, "AGENT_CKPT_URL": str(db), "PYTHONPATH": path},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return process, f"http://127.0.0.1:{port}"


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            httpx.get(url + "/openapi.json")
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"{url} did not answer within {START_S} s: {log.read_text()}")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    folder = tmp_path_factory.mktemp("fastapi")
    logs = [folder / "one.log", folder / "two.log"]
    started = [start_server(folder / "agent.db", log) for log in logs]
    try:
        for (process, url), log in zip(started, logs, strict=True):
            wait_for(url, process, log)
        yield [url for _, url in started]
    finally:
        for process, _ in started:
            process.terminate()
        for process, _ in started:
            process.wait(timeout=30)
    for log in logs:
        # uvicorn ends by the signal that it was sent, so its log tells whether it closed in order.
        assert "Application shutdown complete." in log.read_text() and "Traceback" not in log.read_text()


def texts(history: httpx.Response, kind: str) -> list[str]:
    assert history.status_code == 200, history.text
    return [message["text"] for message in history.json()["messages"] if message["type"] == kind]


def test_a_conversation_goes_on_across_processes(servers: list[str]) -> None:
    """Two server processes answer one conversation in turn, and both show all of it."""
    for number in range(1, 7):
        sent = httpx.post(f"{servers[number % 2]}/threads/walk/messages", json={"text": f"hello {number}"}, timeout=60)
        assert sent.status_code == 200, sent.text
        assert sent.json()["answer"] == f"That was your message number {number}: hello {number}"
    for url in servers:
        assert texts(httpx.get(url + "/threads/walk"), "human") == [f"hello {number}" for number in range(1, 7)]


def test_an_unknown_thread_is_404(servers: list[str]) -> None:
    """A thread that isn't stored is 404, and an empty message 422 that makes no thread."""
    assert httpx.get(servers[0] + "/threads/nobody").status_code == 404
    assert httpx.post(servers[0] + "/threads/nobody/messages", json={"text": ""}).status_code == 422
    assert httpx.get(servers[1] + "/threads/nobody").status_code == 404


def test_racing_requests_win_or_get_409_and_nothing_is_lost(servers: list[str]) -> None:
    """Of requests that race, each is answered and stored once, or gets 409 with the error's fields."""

    async def race() -> list[tuple[str, httpx.Response]]:
        found: list[tuple[str, httpx.Response]] = []
        async with httpx.AsyncClient(timeout=60) as client:

            async def send(url: str, text: str) -> None:
                found.append((text, await client.post(f"{url}/threads/race/messages", json={"text": text})))

            for turn in range(12):
                await asyncio.gather(*(send(servers[i % 2], f"turn {turn} from {i}") for i in range(4)))
        return found

    responses = asyncio.run(race())
    assert {response.status_code for _, response in responses} <= {200, 409}, [r.text for _, r in responses]
    history = httpx.get(servers[0] + "/threads/race")
    human = texts(history, "human")
    accepted = [text for text, response in responses if response.status_code == 200]
    refused = [(text, response.json()) for text, response in responses if response.status_code == 409]
    assert accepted and refused, "the requests did not race"
    assert all(human.count(text) == 1 for text in accepted)
    for text, conflict in refused:
        assert conflict["error"] == "conflict"
        assert {"thread_id", "reason", "expected", "found", "wrote", "checkpoint_id"} <= set(conflict)
        assert conflict["thread_id"] == "race"
        assert conflict["wrote"] or text not in human, "nothing of a refused request may be stored"

    # The history is one line: each message once, turn after turn, and each answer counts all before it.
    assert len(human) == len(set(human))
    turns = [int(text.split()[1]) for text in human]
    assert turns == sorted(turns)
    for answer in texts(history, "ai"):
        number, _, text = answer.removeprefix("That was your message number ").partition(": ")
        assert human[int(number) - 1] == text
    assert httpx.get(servers[1] + "/threads/race").json() == history.json()


def test_a_second_message_while_the_first_is_in_a_tool(servers: list[str]) -> None:
    """B36: in and across processes the second request is told 409 at once and the first is answered, with no trace of
    the second; the next one is answered too."""

    async def both(thread: str, first: str, second: str) -> tuple[httpx.Response, float, httpx.Response, float]:
        async with httpx.AsyncClient(timeout=60) as client:
            begun = time.monotonic()
            slow = asyncio.create_task(client.post(f"{first}/threads/{thread}/messages", json={"text": "look up tea"}))
            while texts_of_calls(await client.get(f"{first}/threads/{thread}")) == 0:
                await asyncio.sleep(0.02)
            sent = time.monotonic()
            refused = await client.post(f"{second}/threads/{thread}/messages", json={"text": "hello?"})
            refused_s = time.monotonic() - sent
            assert not slow.done(), "the first was answered before the second was refused"
            return await slow, time.monotonic() - begun, refused, refused_s

    for thread, second in (("busy-here", servers[0]), ("busy-there", servers[1])):
        answered, answered_s, refused, refused_s = asyncio.run(both(thread, servers[0], second))
        assert (answered.status_code, answered.json().get("answer")) == (200, "all about tea")
        assert refused.status_code == 409, refused.text
        assert (refused.json()["reason"], refused.json()["wrote"]) == ("busy", False)
        print(f"409 after {refused_s:.2f} s, the first answer after {answered_s:.2f} s")
        again = httpx.post(f"{second}/threads/{thread}/messages", json={"text": "hello again"}, timeout=60)
        assert again.json()["answer"] == "That was your message number 2: hello again"


def texts_of_calls(history: httpx.Response) -> int:
    """How many answers without text there are: the model's calls of a tool."""
    return texts(history, "ai").count("") if history.status_code == 200 else 0


def seen_revision(page: httpx.Response) -> int:
    found = re.search(r'data-revision="(\d+)"', page.text)
    assert found, page.text
    return int(found[1])


def decide(url: str, number: str, revision: int, approve: bool = True) -> httpx.Response:
    decision = {"approve": approve, "expected_revision": revision}
    return httpx.post(f"{url}/payments/{number}/decision", json=decision, timeout=60)


def test_two_reviewers_one_payment(servers: list[str]) -> None:
    """Two reviewers see one payment; the first decides, the second is told 409 and changes nothing."""
    one, two = servers
    asked = httpx.post(f"{one}/payments/7", json={"to": "<b>Ada</b>", "cents": 1250}, timeout=60)
    assert asked.json()["question"] == "Pay 12.50 to <b>Ada</b>?"
    assert httpx.post(f"{two}/payments/7", json={"to": "Bob", "cents": 1}, timeout=60).status_code == 409
    pages = [httpx.get(f"{url}/payments/7") for url in servers]
    assert all("Pay 12.50 to &lt;b&gt;Ada&lt;/b&gt;?" in page.text and "decide(true)" in page.text for page in pages)
    first = decide(one, "7", seen_revision(pages[0]))
    assert first.status_code == 200
    assert first.json()["receipt"].startswith("paid, reference ")
    second = decide(two, "7", seen_revision(pages[1]), approve=False)
    assert second.status_code == 409
    told = second.json()
    assert (told["reason"], told["expected"], told["wrote"]) == ("expected_revision", seen_revision(pages[1]), False)
    assert told["found"] == first.json()["revision"]
    for url in servers:
        page = httpx.get(f"{url}/payments/7")
        assert first.json()["receipt"] in page.text
        assert "decide(true)" not in page.text


def test_reviewers_who_decide_at_once(servers: list[str]) -> None:
    """Of decisions that are sent at the same moment exactly one counts."""

    async def race(number: str, revision: int) -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=60) as client:
            sent = []
            for i in range(4):
                decision = {"approve": i % 2 == 0, "expected_revision": revision}
                sent.append(client.post(f"{servers[i // 2]}/payments/{number}/decision", json=decision))
            return await asyncio.gather(*sent)

    for number in ("race-1", "race-2", "race-3"):
        asked = httpx.post(f"{servers[0]}/payments/{number}", json={"to": "Ada", "cents": 100}, timeout=60)
        answers = asyncio.run(race(number, asked.json()["revision"]))
        assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409], [a.text for a in answers]


def test_a_payment_that_is_none(servers: list[str]) -> None:
    """An unknown payment is 404, and a decision on it 409: nobody can have seen it."""
    assert httpx.get(f"{servers[0]}/payments/nobody").status_code == 404
    assert decide(servers[0], "nobody", 3).status_code == 409
    assert httpx.post(f"{servers[0]}/payments/x", json={"to": "", "cents": 0}).status_code == 422


def test_an_unavailable_store_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is busy is told as 503 with Retry-After."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    service = importlib.import_module("fastapi_app")

    class Unavailable:
        async def ainvoke(self, *args: object, **kwargs: object) -> None:
            raise BusyError("a lock was held for 30 s", waited_s=30.0, path="agent.db")

    monkeypatch.setattr(service.app.state, "agent", Unavailable(), raising=False)
    answer = TestClient(service.app).post("/threads/any/messages", json={"text": "hi"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json() == {"error": "unavailable", "message": "a lock was held for 30 s"}
