# SPDX-License-Identifier: Apache-2.0
"""Translates the API server's answers and the transport's exceptions into our errors.

    DriverError
    ├── NotFound (permanent)     404: the object does not exist
    ├── NotServed (retryable)    404: the path does not exist; the kind may not be defined yet
    ├── Invalid (permanent)      422: the server rejects the object
    ├── Conflict (retryable)     409: the object has changed or exists, or a precondition fails
    ├── Gone (retryable)         410: the resourceVersion is too old; list again
    ├── Overloaded (retryable)   429, and 503 with Retry-After: not before `retry_after_s`
    ├── DraDisabled (retryable)  the cluster serves no version of resource.k8s.io that we support
    ├── AnswerTooLong (retryable) it has more bytes than are read
    ├── Refused (retryable)      400, 403: a right is missing, or an admission webhook refuses
    └── RetryableError           401, 5xx, no connection, no answer in time

All have the reason ApiUnavailable. A caller that knows what the request was for replaces it.
"""

import re
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import aiohttp
from nvdra_api import json_text, texts
from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.resource.claims import ClaimRef

MAX_ERROR_BYTES = 64 * 1024
"""How much of an answer other than 2xx is read. A Status is shorter."""
_MAX_TEXT_LENGTH = 2000
_SECONDS = re.compile("[0-9]{1,9}")

TLS_ERRORS = (aiohttp.ClientSSLError, aiohttp.ClientConnectorCertificateError, ssl.SSLError)
"""The transport's exceptions if the server's certificate is not trusted, or ours is not."""


class NotFound(PermanentError):
    """The object does not exist; the server serves its kind."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.API_UNAVAILABLE, message)


class NotServed(RetryableError):
    """The server does not serve the path. Whether the object exists is unknown.

    The kind's CustomResourceDefinition is not installed yet, the API version is no longer served,
    or a proxy has answered. The caller may repeat the discovery.
    """

    def __init__(self, message: str) -> None:
        super().__init__(
            Reason.API_UNAVAILABLE,
            message,
            "it is retried; if this lasts, check whether the cluster has the driver's "
            "CustomResourceDefinitions, and whether a proxy answers for the API server",
        )


class Invalid(PermanentError):
    """The server rejects the object; `server_text` is its message."""

    def __init__(self, message: str, server_text: str) -> None:
        super().__init__(Reason.API_UNAVAILABLE, message)
        self.server_text = server_text


class Conflict(RetryableError):
    """The object has changed since it was read, exists already, or has another UID."""


class Gone(RetryableError):
    """The server no longer has the resourceVersion; the caller must list again."""


class Overloaded(RetryableError):
    """The server accepts no requests for `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(
            Reason.API_UNAVAILABLE, message, "the API server is overloaded; it is retried"
        )
        self.retry_after_s = retry_after_s


class AnswerTooLong(RetryableError):
    """The answer has more bytes than are read; of a list, the caller may ask for fewer objects."""

    def __init__(self, verb: str, path: str, max_bytes: int) -> None:
        super().__init__(
            Reason.API_UNAVAILABLE,
            f"{verb} {path}: the answer has more than {max_bytes} bytes",
            "check whether a proxy answers for the API server",
        )


class Refused(RetryableError):
    """The request is refused as it is; the administrator can change that."""


class DraDisabled(RetryableError):
    """The API server serves no version of resource.k8s.io that we support."""

    def __init__(self, message: str) -> None:
        super().__init__(
            Reason.API_UNAVAILABLE,
            message,
            "Kubernetes 1.34 or later serves it; before, enable the DynamicResourceAllocation gate "
            "and resource.k8s.io/v1beta1 on the API server",
        )


def claim_not_found(ref: ClaimRef) -> PermanentError:
    """The error for a claim that the API server does not have."""
    return PermanentError(
        Reason.CLAIM_NOT_FOUND,
        f"claim {ref} does not exist",
        "nothing to do if its pod is being deleted; otherwise create the claim again and "
        "delete the pod",
        claim=str(ref),
    )


def claim_replaced(ref: ClaimRef, uid: str) -> PermanentError:
    """The error for a claim of the name that has another UID than the kubelet requests."""
    return PermanentError(
        Reason.CLAIM_UID_CHANGED,
        f"claim {ref.namespace}/{ref.name} was replaced: its UID is now {uid}, but the kubelet "
        f"requests {ref.uid}",
        "delete the pod that still refers to the old claim",
        claim=str(ref),
    )


def unusable_claim(ref: ClaimRef, field: str, text: str) -> PermanentError:
    """The error for a claim of which a field exceeds a bound."""
    return PermanentError(
        Reason.INVALID_CONFIG,
        f"claim {ref} cannot be read: {text}",
        "correct the field, in the ResourceClaimTemplate if the claim was made from one, and "
        "create the claim anew",
        claim=str(ref),
        field=field,
    )


def error_for_status(
    verb: str, path: str, status: int, body: bytes, retry_after_s: float | None = None
) -> DriverError:
    """The error for an answer other than 2xx.

    Args:
        verb: HTTP method.
        path: Path without the host, for the message.
        status: HTTP status.
        body: A Kubernetes Status, or any text of a proxy.
        retry_after_s: Value of the Retry-After header.
    """
    document = _parse_status(body)
    text = _message(document, body)
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
    kind = Refused if status in (400, 403) else RetryableError
    return kind(Reason.API_UNAVAILABLE, message, _ADVICE_BY_STATUS.get(status, ""))


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The Retry-After header in seconds. The API server never sends a date."""
    text = headers.get("Retry-After", "")
    return float(text) if _SECONDS.fullmatch(text) else None


_UNREACHABLE_ADVICE = (
    "it is retried; if this lasts, check whether this node can reach the API server"
)

_ADVICE_BY_STATUS = {
    401: "check the credentials in the kubeconfig or the pod's service account token",
    403: "grant the driver's service account this verb on this resource; if the message names an "
    "admission policy, look at what it says",
}


class translate_errors:
    """Translate the transport's exceptions. The cause stays attached.

    It is a class, as `invalid_response` is, because a generator costs every request more.

    Raises:
        RetryableError: The block has raised one of the transport's exceptions.
    """

    __slots__ = ("_host", "_path", "_verb")

    def __init__(self, verb: str, path: str, host: str) -> None:
        self._verb = verb
        self._path = path
        self._host = host

    def __enter__(self) -> None:
        """Begin a call."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raise what the exception means, if it is the transport's."""
        if error is None:
            return
        if isinstance(error, TimeoutError):
            what, advice = str(error) or "no answer in time", _UNREACHABLE_ADVICE
        elif isinstance(error, TLS_ERRORS):
            what, advice = str(error), "check the cluster's CA in the kubeconfig"
        elif isinstance(error, aiohttp.ClientError | OSError):
            what, advice = str(error) or type(error).__name__, _UNREACHABLE_ADVICE
        else:
            return
        call = f"{self._verb} {self._path} at {self._host}"
        raise RetryableError(Reason.API_UNAVAILABLE, f"{call}: {what}", advice) from error


class invalid_response:
    """Translate the error of decoding a 2xx answer, which may come from a proxy.

    Raises:
        RetryableError: The block has raised a ValueError.
    """

    __slots__ = ("_verb", "_what")

    def __init__(self, verb: str, what: str) -> None:
        self._verb = verb
        self._what = what

    def __enter__(self) -> None:
        """Begin to decode."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raise what the exception means, if it is about the answer."""
        if isinstance(error, ValueError):
            text = texts.shortened(str(error), _MAX_TEXT_LENGTH)
            raise RetryableError(
                Reason.API_UNAVAILABLE,
                f"{self._verb} {self._what}: the answer is not valid: {text}",
                "check whether a proxy answers for the API server",
            ) from error


def _parse_status(body: bytes) -> dict[str, Any]:
    try:
        document = json_text.parse(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) and document.get("kind") == "Status" else {}


def _message(document: dict[str, Any], body: bytes) -> str:
    text = str(document.get("message", "")) or body.decode(errors="replace").strip()
    return texts.shortened(text, _MAX_TEXT_LENGTH)
