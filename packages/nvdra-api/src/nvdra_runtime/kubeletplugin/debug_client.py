# SPDX-License-Identifier: Apache-2.0
"""Asks the running plugin over its debug endpoint; for the plugin's own commands."""

from http.client import HTTPConnection, HTTPException
from typing import NamedTuple


class Answer(NamedTuple):
    """The plugin's answer."""

    code: int
    body: bytes


class Unreachable(Exception):
    """The plugin does not respond; the message says why and what to do."""


def ask(
    program: str, endpoint: str, method: str, path: str, timeout_s: float, body: str | None = None
) -> Answer:
    """Send a request to the plugin at `host:port`.

    Raises:
        Unreachable: No plugin responds there within the timeout.
    """
    host, _, port = endpoint.rpartition(":")
    connection = HTTPConnection(host or "127.0.0.1", int(port), timeout=timeout_s)
    try:
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read())
    except TimeoutError as error:
        raise Unreachable(
            f"the plugin at {endpoint} accepts and does not answer within {timeout_s:g} s; its "
            "log and `kubectl describe pod` of its pod say more"
        ) from error
    except (OSError, HTTPException) as error:
        raise Unreachable(
            f"the plugin cannot be asked at {endpoint}: {error}. Is {program} running here? "
            "Run this in its pod (kubectl exec), or say where it is with --debug-endpoint; a "
            "plugin that was started with an empty --debug-endpoint cannot be asked"
        ) from error
    finally:
        connection.close()
