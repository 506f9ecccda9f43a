# SPDX-License-Identifier: Apache-2.0
"""A client of the API server whose requests a test records and answers.

Only what is sent and received is replaced: the client still builds the requests and translates the
answers. It shows what is asked for, such as the preconditions of a delete, and how answers are
taken that a real API server gives only in a race.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nvdra_api.meta import JsonObject
from nvdra_runtime.kube.client import Call, Client
from nvdra_runtime.kube.connection import JSON
from nvdra_runtime.kube.errors import AnswerTooLong, error_for_status, translate_errors


@dataclass(frozen=True)
class Request:
    """What the client asked for.

    Attributes:
        line: `<VERB> <path>`; the verb of a watch is `WATCH`.
        body: The document that was sent; None if there was none.
        params: The query's parameters.
        content_type: The type of the body.
        time: When it was sent, by the loop's clock.
        accept: The media type of the answer.
    """

    line: str
    body: Any
    params: Mapping[str, str]
    content_type: str
    time: float
    accept: str = JSON


Answer = tuple[int, JsonObject]
"""An HTTP status and a document."""


def status(code: int, reason: str = "", **details: Any) -> Answer:
    """A refusal as the API server sends it, with the details that it has of an object."""
    document = {"kind": "Status", "code": code, "reason": reason, "message": f"it is {reason}"}
    return code, {**document, "details": {"kind": "things", **details}}


class RecordedApi(Client):
    """Hands every request to the test, which answers it.

    Attributes:
        requests: All requests, in order.
        delay_s: How long each answer takes.
    """

    def __init__(self, answer: Callable[[Request], Answer], version: str = "v1") -> None:
        self.requests: list[Request] = []
        self.delay_s = 0.0
        self._answer = answer
        self._pushed: dict[str, asyncio.Queue[JsonObject]] = {}
        self._dra_api_version = version

    @property
    def host(self) -> str:
        """The address in error messages."""
        return "https://api"

    def lines(self, *verbs: str) -> list[str]:
        """`<VERB> <path>` of the requests with these verbs, or of all."""
        found = [each.line for each in self.requests]
        return [line for line in found if not verbs or line.partition(" ")[0] in verbs]

    def sent(self, line: str) -> Request:
        """The only request with this line."""
        (found,) = (each for each in self.requests if each.line == line)
        return found

    async def watch(
        self, path: str, params: Mapping[str, str], deadline: float, accept: str = JSON
    ) -> AsyncGenerator[bytes]:
        """The answer's `events`, which end the watch; without any, those that the test pushes."""
        call = Call("WATCH", path, deadline, params, accept=accept)
        document = json.loads(await self._call(call))
        for event in document.get("events", ()):
            yield json.dumps(event).encode()
        if "events" in document:
            return
        pushed = self._pushed.setdefault(path, asyncio.Queue())
        with translate_errors("WATCH", path, self.host):
            async with asyncio.timeout_at(deadline):
                while True:
                    yield json.dumps(await pushed.get()).encode()

    def push(self, path: str, kind: str, obj: JsonObject) -> None:
        """Send an event to whoever watches the collection."""
        pushed = self._pushed.setdefault(path, asyncio.Queue())
        pushed.put_nowait({"type": kind, "object": obj})

    async def _call(self, call: Call) -> bytes:
        now = asyncio.get_running_loop().time()
        line = f"{call.verb} {call.path}"
        with translate_errors(call.verb, call.path, self.host):
            if call.deadline <= now:
                raise TimeoutError
        params = dict(call.params or {})
        self.requests.append(Request(line, call.body, params, call.content_type, now, call.accept))
        request = self.requests[-1]
        with translate_errors(call.verb, call.path, self.host):
            async with asyncio.timeout_at(call.deadline):
                await asyncio.sleep(self.delay_s)  # others may run while a request is on its way
        code, document = self._answer(request)
        text = json.dumps(document).encode()
        if code >= 300:
            raise error_for_status(call.verb, call.path, code, text)
        if len(text) > call.max_bytes:
            raise AnswerTooLong(call.verb, call.path, call.max_bytes)
        return text
