# SPDX-License-Identifier: Apache-2.0
"""The API server over HTTPS, as an administrator: requests without a kubectl process for each.

Both requests and watches outlive a restart of the API server.
"""

import base64
import contextlib
import http.client
import json
import ssl
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvdra_testing import yaml_documents

Json = dict[str, Any]

AWAY_S = 60
"""How long a request waits for an API server that restarts."""

PAUSE_S = 0.2
WATCH_S = 300
"""The length of one watch, and the longest silence in it; the next one continues."""

GONE = 410


class ApiError(Exception):
    """The API server's refusal of a request."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


@dataclass(frozen=True)
class ApiClient:
    """One API server, and an administrator's client certificate for it."""

    url: str
    context: ssl.SSLContext

    @classmethod
    def from_kubeconfig(cls, file: Path) -> "ApiClient":
        """A client with the certificates that a lab's kubeconfig contains."""
        config = yaml_documents.load(file.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        with tempfile.NamedTemporaryFile() as pair:  # ssl reads certificates from files only
            for key in ("client-certificate-data", "client-key-data"):
                pair.write(base64.b64decode(user[key]) + b"\n")
            pair.flush()
            context.load_cert_chain(pair.name)
        return cls(cluster["server"], context)

    def request(self, verb: str, path: str, body: Json | None = None) -> Json:
        """Send a request, and again while the server cannot be reached or is starting.

        The body of a PATCH is a JSON merge patch.
        A create that was carried out without an answer is refused when it is repeated (409).

        Raises:
            ApiError: The server's refusal, or its last answer after `AWAY_S`.
        """
        deadline = time.monotonic() + AWAY_S
        while True:
            try:
                with self._open(verb, path, body, timeout_s=10) as answer:
                    found: Json = json.loads(answer.read() or b"{}")
                    return found
            except urllib.error.HTTPError as error:
                failure = ApiError(error.code, error.read().decode(errors="replace")[:500])
                # 401 and 403: its authorizers have not read their objects yet
                is_starting = error.code >= 500 or error.code in (401, 403, 429)
                if not is_starting or time.monotonic() > deadline:
                    raise failure from error
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() > deadline:
                    raise ApiError(0, str(error)) from error
            time.sleep(PAUSE_S)

    def refusal(self, path: str) -> str | None:
        """Why a GET does not succeed, asked once; None if it does. For probes through a proxy."""
        try:
            with self._open("GET", path, None, timeout_s=10):
                return None
        except urllib.error.HTTPError as error:
            return f"{error.code}: {error.read().decode(errors='replace')}"
        except (OSError, http.client.HTTPException) as error:
            return str(error)

    @contextlib.contextmanager
    def watch(self, path: str, take: Callable[[str, Json], None]) -> Iterator[None]:
        """Pass the objects of a collection on while the block runs, in a thread of its own.

        Args:
            path: The collection, without a query.
            take: Gets ADDED, MODIFIED or DELETED with the object. Objects that vanished unseen,
                because the watch was too old, are passed as DELETED in their last version.
        """
        stop = threading.Event()
        thread = threading.Thread(target=self._follow, args=(path, take, stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()

    def _follow(self, path: str, take: Callable[[str, Json], None], stop: threading.Event) -> None:
        known: dict[str, Json] = {}
        version = ""
        while not stop.is_set():
            try:
                if not version:
                    listed = self.request("GET", path)
                    version = listed["metadata"]["resourceVersion"]
                    found = {each["metadata"]["uid"]: each for each in listed["items"]}
                    for uid in known.keys() - found.keys():
                        take("DELETED", known[uid])
                    for each in found.values():
                        take("MODIFIED", each)
                    known = found
                query = f"watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}"
                query += f"&resourceVersion={version}"
                with self._open("GET", f"{path}?{query}", None, WATCH_S) as lines:
                    for line in lines:
                        if stop.is_set():
                            return
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            version = ""
                            break
                        meta = event["object"]["metadata"]
                        version = meta["resourceVersion"]
                        if event["type"] == "BOOKMARK":
                            continue
                        if event["type"] == "DELETED":
                            known.pop(meta["uid"], None)
                        else:
                            known[meta["uid"]] = event["object"]
                        take(event["type"], event["object"])
            except urllib.error.HTTPError as error:
                if error.code == GONE:
                    version = ""
                stop.wait(PAUSE_S)
            except (OSError, ValueError, ApiError, http.client.HTTPException):
                stop.wait(PAUSE_S)

    def _open(
        self, verb: str, path: str, body: Json | None, timeout_s: float
    ) -> "http.client.HTTPResponse":
        data = None if body is None else json.dumps(body).encode()
        kind = "application/merge-patch+json" if verb == "PATCH" else "application/json"
        headers = {"Content-Type": kind, "Accept": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=verb)
        answer: http.client.HTTPResponse = urllib.request.urlopen(
            request, context=self.context, timeout=timeout_s
        )
        return answer
