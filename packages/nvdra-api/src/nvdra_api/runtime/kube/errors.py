"""What the API server refused, and what kept us from hearing it: translated once, at the door.

    DriverError
    ├── NotFound (permanent)     404: there is no such object
    ├── NotServed (retryable)    404: no such path, as of a kind that is not defined yet
    ├── Invalid (permanent)      422: the server says what is wrong with what we sent
    ├── Conflict (retryable)     409: somebody else was faster, or a precondition does not hold
    ├── Gone (retryable)         410: too old a resourceVersion; list again
    ├── Overloaded (retryable)   429, and 503 that names a time: not before `retry_after_s`
    ├── DraDisabled (retryable)  the cluster serves no version of resource.k8s.io that we speak
    └── RetryableError           401, 403, 5xx, no connection, no answer in time

All have the reason ApiUnavailable until somebody who knows what was asked for gives a better one.
"""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp

from nvdra_api.types.errors import DriverError, PermanentError, Reason, RetryableError

_LONGEST_TEXT = 2000


class NotFound(PermanentError):
    """There is no such object: the server knows what it would be, and says that it is not there."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.API_UNAVAILABLE, message)


class NotServed(RetryableError):
    """The server knows no such path, which says nothing of the object.

    The kind's definition is not installed yet, the API version is served no more, or something in
    between has answered. Discovery is worth repeating.
    """

    def __init__(self, message: str) -> None:
        super().__init__(
            Reason.API_UNAVAILABLE,
            message,
            "it is tried again; if this lasts, see whether the cluster has the driver's "
            "CustomResourceDefinitions, and what answers in the API server's place",
        )


class Invalid(PermanentError):
    """The server rejects what we sent; its text is in `server_text`."""

    def __init__(self, message: str, server_text: str) -> None:
        super().__init__(Reason.API_UNAVAILABLE, message)
        self.server_text = server_text


class Conflict(RetryableError):
    """The object changed since we read it, exists already, or is another than we meant."""


class Gone(RetryableError):
    """The resourceVersion is no longer kept; only a new list helps."""


class Overloaded(RetryableError):
    """The server asks to be left alone for `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(
            Reason.API_UNAVAILABLE, message, "the API server is overloaded; nothing to do here"
        )
        self.retry_after_s = retry_after_s


class DraDisabled(RetryableError):
    """The API server offers no resource.k8s.io version of ours."""

    def __init__(self, message: str) -> None:
        super().__init__(
            Reason.API_UNAVAILABLE,
            message,
            "Kubernetes 1.34 or later serves it; before, enable the DynamicResourceAllocation gate "
            "and resource.k8s.io/v1beta1 on the API server",
        )


def refused(
    verb: str, path: str, status: int, body: bytes, retry_after_s: float | None = None
) -> DriverError:
    """What an answer other than 2xx means.

    Args:
        verb: HTTP method.
        path: Without the host, for the message.
        status: HTTP status.
        body: As received; a Kubernetes Status, or anything a proxy in between may say.
        retry_after_s: What the answer's Retry-After says.
    """
    document = _status(body)
    text = _text(document, body)
    message = f"{verb} {path}: {status}" + (f": {text}" if text else "")
    if status == 404:
        return NotFound(message) if document.get("details") else NotServed(message)
    if status == 422:
        return Invalid(message, text)
    if status == 409:
        return Conflict(Reason.API_UNAVAILABLE, message)
    if status == 410:
        return Gone(Reason.API_UNAVAILABLE, message)
    if status == 429 or (status == 503 and retry_after_s is not None):
        return Overloaded(message, 1.0 if retry_after_s is None else retry_after_s)
    return RetryableError(Reason.API_UNAVAILABLE, message, _REMEDIES.get(status, ""))


_UNREACHED = (
    "it is tried again; if this lasts, see whether the API server can be reached from this node"
)

_REMEDIES = {
    401: "check the credentials in the kubeconfig or the pod's service account token",
    403: "grant the driver's service account this verb on this resource",
}


@contextmanager
def errors(verb: str, path: str, host: str) -> Iterator[None]:
    """Translate what the transport raises; the cause stays attached."""
    call = f"{verb} {path} at {host}"
    try:
        yield
    except TimeoutError as error:
        raise RetryableError(
            Reason.API_UNAVAILABLE,
            f"{call}: {str(error) or 'no answer in time'}",
            _UNREACHED,
        ) from error
    except (aiohttp.ClientSSLError, aiohttp.ClientConnectorCertificateError, ssl.SSLError) as error:
        raise RetryableError(
            Reason.API_UNAVAILABLE, f"{call}: {error}", "check the cluster's CA in the kubeconfig"
        ) from error
    except (aiohttp.ClientError, OSError) as error:
        what = str(error) or type(error).__name__
        raise RetryableError(Reason.API_UNAVAILABLE, f"{call}: {what}", _UNREACHED) from error


@contextmanager
def garbled(verb: str, what: str) -> Iterator[None]:
    """A 2xx answer that is not what it should be: something in between answered."""
    try:
        yield
    except ValueError as error:
        raise RetryableError(
            Reason.API_UNAVAILABLE,
            f"{verb} {what}: the answer makes no sense: {error}",
            "see what answers in the API server's place",
        ) from error


def _status(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) and document.get("kind") == "Status" else {}


def _text(document: dict[str, Any], body: bytes) -> str:
    text = str(document.get("message", "")) or body.decode(errors="replace").strip()
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
