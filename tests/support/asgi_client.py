"""Requests to an application without a socket: enough of a client for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes, urlencode


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""

    @property
    def text(self) -> str:
        return self.content.decode()


@dataclass
class Client:
    """Asks an application. host: the header that every request has unless it says otherwise."""

    app: Any
    host: str = "127.0.0.1"

    def get(self, address: str, **headers: str) -> Answer:
        return asyncio.run(self._ask("GET", address, headers, b""))

    def post(self, address: str, values: Mapping[str, object], **headers: str) -> Answer:
        form = {"content_type": "application/x-www-form-urlencoded"}
        return asyncio.run(self._ask("POST", address, form | headers, urlencode(values).encode()))

    async def _ask(
        self, method: str, address: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        path, _, query = address.partition("?")
        size = {"content-length": str(len(body))} if body or method == "POST" else {}
        given = {"host": self.host} | size | {k.replace("_", "-"): v for k, v in headers.items()}
        scope = {
            "type": "http",
            "method": method,
            "path": unquote_to_bytes(path).decode("utf-8", "replace"),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(k.encode(), v.encode()) for k, v in given.items()],
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
        }
        answer = Answer()
        sent = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not sent:
                await asyncio.Event().wait()  # nobody hangs up
            return sent.pop()

        async def send(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            else:
                answer.content += message.get("body", b"")

        await self.app(scope, receive, send)
        return answer
