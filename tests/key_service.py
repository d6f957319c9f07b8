"""A key service (KMS) on a local port: wraps and unwraps over HTTP, and fails the way it is told to."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM


class KeyServer:
    """Serves until `close`.

    Attributes:
        mode: `"right"`, `"slow"` (never answers in time), `"down"` (refuses), `"wrong"` (gives other bytes).
        unwrapped: how often each wrapped key was asked for.
    """

    def __init__(self) -> None:
        self.mode = "right"
        self.unwrapped: Counter[str] = Counter()
        self._master = AESGCM(os.urandom(32))
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if outer.mode == "slow":
                    time.sleep(1.0)
                status, answer = (503, "") if outer.mode == "down" else (200, outer.answer(asked))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(answer.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, asked: dict[str, str]) -> str:
        data = base64.b64decode(asked["data"])
        if asked["operation"] == "wrap":
            nonce = os.urandom(12)
            return base64.b64encode(nonce + self._master.encrypt(nonce, data, None)).decode()
        self.unwrapped[asked["data"]] += 1
        keys = self._master.decrypt(data[:12], data[12:], None)
        return base64.b64encode(os.urandom(len(keys)) if self.mode == "wrong" else keys).decode()

    def __call__(self, operation: str, key_id: str, data: bytes) -> Any:
        """What a saver is given as its key."""
        asked = json.dumps({"operation": operation, "data": base64.b64encode(data).decode()}).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url, asked, method="POST"), timeout=10) as response:
                answer = base64.b64decode(response.read())
        except urllib.error.HTTPError as exc:
            exc.close()
            raise
        return ("kms-1", answer) if operation == "wrap" else answer

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
