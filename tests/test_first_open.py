"""The first open of one fresh file by several savers of one process at once."""

from __future__ import annotations

import threading
from pathlib import Path

from agent_ckpt import AgentSaver
from tests.conftest import Api


def test_savers_of_one_process_open_a_fresh_file_together(form: str, tmp_path: Path) -> None:
    """B31: whoever comes while another saver of the process switches the new file to WAL waits for it."""
    for number in range(60):
        savers = [AgentSaver(tmp_path / f"{number}.db") for _ in range(3)]
        together = threading.Barrier(len(savers))
        failed: list[BaseException] = []

        def look(saver: AgentSaver, together: threading.Barrier, failed: list[BaseException]) -> None:
            together.wait(30)
            try:
                assert Api(saver, form).get_tuple({"configurable": {"thread_id": "t"}}) is None
            except BaseException as exc:
                failed.append(exc)

        workers = [threading.Thread(target=look, args=(saver, together, failed)) for saver in savers]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        assert failed == []
        for saver in savers:
            assert not saver.verify().findings
            saver.close()
