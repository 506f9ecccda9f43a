# SPDX-License-Identifier: Apache-2.0
"""A client for the API server: it takes paths and JSON, returns JSON, and raises our errors.

Every call has a deadline, counts against the client-side rate limit and is observed once per
attempt. A call is retried in three cases: after 401 once, with credentials that are read again;
once with a CA that is read again if the server's certificate is not trusted; and after 429 at most
five times, if its Retry-After lies within the deadline. All other retries are up to the caller.

A claim's GET takes 0.94 ms p50 over a kept connection to an API server on the same two cores, of
which 0.31 ms are our processor time: 0.12 the send, 0.03 decoding, the rest aiohttp and asyncio.
Source: docs/reference/api-server.md, "API version detection", "The Python Kubernetes client";
docs/design.md, "Settled".
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import aiohttp
from nvdra_api import decoding, json_text
from nvdra_api.json_text import MAX_OBJECT_BYTES, OutOfBoundsError
from nvdra_api.meta import JsonObject
from nvdra_api.resource.claims import ClaimRef, ResourceClaim
from pydantic import ValidationError

from nvdra_runtime.kube import apiversions, errors
from nvdra_runtime.kube.connection import JSON, YAML, Connection, KubeSettings
from nvdra_runtime.kube.errors import (
    AnswerTooLong,
    DraDisabled,
    NotFound,
    NotServed,
    invalid_response,
    translate_errors,
)
from nvdra_runtime.kube.rate_limiter import RateLimiter
from nvdra_runtime.kube.request_observer import (
    FinishedRequest,
    RequestObserver,
    ignore_request,
    resource_of_path,
)
from nvdra_runtime.process import backoff, log_records

__all__ = ["Client", "FinishedRequest", "KubeSettings", "RequestObserver", "connect"]

LOG = log_records.logger(__name__)

_MAX_RETRIES: Final = 5
_LONG_BYTES: Final = 1 << 20
"""A longer list is parsed beside the loop, which has a lease to renew and probes to answer: one
that holds a million brackets takes seconds."""
MAX_LIST_BYTES: Final = 64 << 20
"""The longest answer. A list of 1,000 nodes, or of 500 domains with all their members, has 10."""


class Call(NamedTuple):
    """What is asked of the API server, and how much is read of its answer.

    Attributes:
        verb: The HTTP method, or `WATCH`.
        path: Starts with `/api` or `/apis`.
        deadline: Monotonic seconds of the loop's clock.
        params: Query parameters, not encoded.
        body: The document to send.
        content_type: The type of the body.
        accept: Media type of the answer, such as `connection.METADATA_LIST`.
        max_bytes: Of a longer answer no more than this is read.
    """

    verb: str
    path: str
    deadline: float
    params: Mapping[str, str] | None = None
    body: Any = None
    content_type: str = JSON
    accept: str = JSON
    max_bytes: int = MAX_LIST_BYTES


class Client:
    """Calls one API server. `connect` creates it.

    Paths, deadlines, parameters and media types are those of `Call`.
    """

    def __init__(
        self, connection: Connection, rate_limiter: RateLimiter, observe: RequestObserver
    ) -> None:
        self._connection = connection
        self._rate_limiter = rate_limiter
        self._observe = observe
        self._dra_api_version: str | None = None

    @property
    def host(self) -> str:
        """`https://<host>:<port>`, for error messages."""
        return self._connection.host

    async def get(
        self,
        path: str,
        deadline: float,
        params: Mapping[str, str] | None = None,
        accept: str = JSON,
    ) -> JsonObject:
        """Read an object or a list.

        Raises:
            NotFound: The object does not exist.
            RetryableError: Any other error, or no answer by the deadline.
        """
        found, _ = await self.list_page(Call("GET", path, deadline, params, accept=accept))
        return found

    async def create(
        self, path: str, body: JsonObject, deadline: float, *, normalized: bool = False
    ) -> JsonObject:
        """Create an object in the collection `path`. Returns the stored object.

        Of one that is `normalized` the server writes embedded documents, such as opaque parameters,
        in its own form. Otherwise it stores them as they are sent, blanks included, and later takes
        its own form for a change: an update of an immutable spec fails.

        Raises:
            Invalid: The server rejects the object.
            Conflict: The object exists.
        """
        content_type = YAML if normalized else JSON
        return await self._object(Call("POST", path, deadline, None, body, content_type))

    async def replace(self, path: str, body: JsonObject, deadline: float) -> JsonObject:
        """Replace an object. If it has a resourceVersion and another one is stored: Conflict."""
        return await self._object(Call("PUT", path, deadline, body=body))

    async def patch(
        self,
        path: str,
        body: Any,
        deadline: float,
        content_type: str = "application/merge-patch+json",
        params: Mapping[str, str] | None = None,
        accept: str = JSON,
    ) -> JsonObject:
        """Patch an object. Returns the stored object, or what `accept` leaves of it."""
        return await self._object(Call("PATCH", path, deadline, params, body, content_type, accept))

    async def delete(
        self,
        path: str,
        deadline: float,
        *,
        uid: str = "",
        resource_version: str = "",
        accept: str = JSON,
    ) -> JsonObject:
        """Delete an object, only if it has the UID and the resourceVersion that are given.

        Returns:
            The object, if finalizers keep it. If it is gone: its last state, or a Status, depending
            on its type.

        Raises:
            NotFound: The object does not exist.
            Conflict: It has another UID or resourceVersion.
        """
        conditions = {"uid": uid, "resourceVersion": resource_version}
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {key: value for key, value in conditions.items() if value},
        }
        return await self._object(Call("DELETE", path, deadline, body=body, accept=accept))

    async def get_claim(self, ref: ClaimRef, deadline: float) -> ResourceClaim:
        """Read the claim that the kubelet refers to, never another claim of the same name.

        Raises:
            PermanentError: ClaimNotFound, ClaimUIDChanged, InvalidConfig.
            RetryableError: ApiUnavailable.
        """
        try:
            body = await self._get_claim(ref, deadline)
        except NotFound as error:
            raise errors.claim_not_found(ref) from error
        claim = _decode_claim(ref, body)
        if claim.metadata.uid != ref.uid:
            raise errors.claim_replaced(ref, claim.metadata.uid)
        return claim

    async def _get_claim(self, ref: ClaimRef, deadline: float) -> bytes:
        version = await self.dra_api_version(deadline)
        place = ref.namespace, ref.name
        try:
            return await self._call(Call("GET", apiversions.claim_path(version, *place), deadline))
        except NotServed:
            newer = await self.dra_api_version(deadline, stale=version)
            return await self._call(Call("GET", apiversions.claim_path(newer, *place), deadline))

    async def dra_api_version(self, deadline: float, *, stale: str = "") -> str:
        """The version of resource.k8s.io to use: `v1`, `v1beta2` or `v1beta1`.

        It is discovered once. A caller that got 404 for a path of the known version passes that
        version as `stale`, and it is discovered again.

        Raises:
            DraDisabled: The server has none of them.
        """
        if self._dra_api_version is not None and self._dra_api_version != stale:
            return self._dra_api_version
        try:
            group = await self.get(apiversions.GROUP_PATH, deadline)
        except (NotFound, NotServed) as error:
            raise DraDisabled(f"{self.host} serves no resource.k8s.io API") from error
        self._dra_api_version = apiversions.preferred_version(group)
        if self._dra_api_version is None:
            raise DraDisabled(f"{self.host} serves no stable or beta version of resource.k8s.io")
        LOG.info("Using resource.k8s.io", version=self._dra_api_version)
        return self._dra_api_version

    async def watch(
        self, path: str, params: Mapping[str, str], deadline: float, accept: str = JSON
    ) -> AsyncGenerator[bytes]:
        """Watch a collection. Yields the server's JSON lines until the server ends the watch.

        Close the generator (`contextlib.aclosing`), because it holds a connection. `params` are
        selectors, resourceVersion and timeoutSeconds. The deadline is for a watch that the server
        does not end, and `accept` the media type of each object.

        Raises:
            Gone: The resourceVersion is too old.
            NotServed: The server no longer serves the collection's API version.
            RetryableError: The connection broke, or the deadline passed.
        """
        call = Call("WATCH", path, deadline, {**params, "watch": "true"}, accept=accept)
        response = await self._send_with_retries(call)
        parts, size = list[bytes](), 0
        try:
            # The timeout is around each read: around a yield it would cancel the consumer.
            while chunk := await self._answered(call, response.content.readany()):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    yield b"".join((*parts, line))
                    parts, size = [], 0
                parts.append(rest)
                size += len(rest)
                if size > MAX_OBJECT_BYTES:
                    raise AnswerTooLong("WATCH", path, MAX_OBJECT_BYTES)
        finally:
            response.close()

    async def list_page(self, call: Call) -> tuple[JsonObject, int]:
        """Read a page of a list, or all of it. Returns it and the length of its text in bytes.

        Raises:
            AnswerTooLong: The answer has more than `max_bytes`; no more of it was read.
            DriverError: Any other error, or no answer by the deadline.
        """
        body = await self._call(call)
        if len(body) <= _LONG_BYTES:
            return _decode_object(call, body), len(body)
        return await asyncio.to_thread(_decode_object, call, body), len(body)

    async def _object(self, call: Call) -> JsonObject:
        return _decode_object(call, await self._call(call))

    async def _call(self, call: Call) -> bytes:
        response = await self._send_with_retries(call)
        try:
            answer = await self._answered(call, _read(response, call.max_bytes))
        finally:
            response.release()
        if len(answer) > call.max_bytes:
            raise AnswerTooLong(call.verb, call.path, call.max_bytes)
        return answer

    async def _answered(self, call: Call, read: Coroutine[Any, Any, bytes]) -> bytes:
        with translate_errors(call.verb, call.path, self.host):
            async with asyncio.timeout_at(call.deadline):
                return await read

    async def _send_with_retries(self, call: Call) -> aiohttp.ClientResponse:
        """Send a request until it is answered with 2xx. The body is not read yet.

        Raises:
            DriverError: The server answered otherwise, or not at all.
        """
        verb, path, deadline = call.verb, call.path, call.deadline
        is_reloaded = False
        for attempt in range(_MAX_RETRIES + 1):
            generation = self._connection.credentials_generation
            with translate_errors(verb, path, self.host):
                async with asyncio.timeout_at(deadline):
                    try:
                        response = await self._send_once(call)
                    except errors.TLS_ERRORS:
                        # The cluster's CA may have been rotated since it was read.
                        if is_reloaded or not await self._connection.reload_credentials(generation):
                            raise
                        is_reloaded = True
                        continue
                    if response.status < 300:
                        return response
                    text = (await _read(response, errors.MAX_ERROR_BYTES))[: errors.MAX_ERROR_BYTES]
            if response.status == 401 and not is_reloaded:
                is_reloaded = True
                if await self._connection.reload_credentials(generation):
                    continue
            retry_after_s = errors.retry_after_s(response.headers)
            pause_s = 1.0 if retry_after_s is None else retry_after_s
            now = asyncio.get_running_loop().time()
            is_last = attempt == _MAX_RETRIES or not backoff.fits(pause_s, now, deadline)
            if response.status != 429 or is_last:
                raise errors.error_for_status(verb, path, response.status, text, retry_after_s)
            await asyncio.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    async def _send_once(self, call: Call) -> aiohttp.ClientResponse:
        await self._rate_limiter.acquire(call.deadline)
        clock = asyncio.get_running_loop().time
        started, status = clock(), 0
        method = "GET" if call.verb == "WATCH" else call.verb
        target = f"{call.path}?{urlencode(call.params)}" if call.params else call.path
        try:
            response = await self._connection.request(
                method, target, call.body, call.content_type, call.accept
            )
            status = response.status
            return response
        finally:
            resource = resource_of_path(call.path)
            self._observe(FinishedRequest(call.verb, resource, status, clock() - started))


@asynccontextmanager
async def connect(
    settings: KubeSettings, observe: RequestObserver = ignore_request
) -> AsyncIterator[Client]:
    """Create a client for the API server. No request is sent yet.

    Args:
        settings: The API server and the rate limit.
        observe: Called with every finished attempt.

    Raises:
        RetryableError: ApiUnavailable: The configuration cannot be read.
    """
    connection = Connection(settings)
    try:
        await connection.open()
        yield Client(connection, RateLimiter(settings.qps, settings.burst), observe)
    finally:
        await connection.close()


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Read a body. Of one that is too long only the beginning is read, more than `max_bytes`."""
    parts, size = list[bytes](), 0
    while chunk := await response.content.readany():
        parts.append(chunk)
        size += len(chunk)
        if size > max_bytes:
            response.close()  # the rest would be read before the connection is used again
            break
    return b"".join(parts)


def _decode_object(call: Call, body: bytes) -> JsonObject:
    with invalid_response(call.verb, call.path):
        document = json_text.parse_objects(body, MAX_LIST_BYTES)
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")  # noqa: TRY004 - as the parser
    return document


def _decode_claim(ref: ClaimRef, body: bytes) -> ResourceClaim:
    """Decode a claim, of which only the opaque parameters are as a user wrote them.

    Raises:
        PermanentError: InvalidConfig: Something in it exceeds a bound.
        RetryableError: ApiUnavailable: It is no claim.
    """
    with invalid_response("GET", f"claim {ref}"):
        try:
            if b'"opaque"' not in body:  # pydantic's parser has the same bounds
                return ResourceClaim.model_validate_json(body)
            # The strict decoder of configs is to see the fields that a user wrote twice.
            return ResourceClaim.model_validate(decoding.parse(body))
        except OutOfBoundsError as error:
            raise errors.unusable_claim(ref, error.path, str(error)) from error
        except ValidationError as error:
            for detail in error.errors(include_url=False, include_input=False):
                if detail["type"] == "quantity_bound":
                    field = ".".join(map(str, detail["loc"]))
                    raise errors.unusable_claim(ref, field, f"{field}: {detail['msg']}") from error
            raise
