# SPDX-License-Identifier: Apache-2.0
"""AdmissionReview on the wire (`admission.k8s.io/v1`): what is asked, and the answer.

Only what a verdict needs is decoded. Parts that may turn out not to be needed, or that have their
own decoder, stay JSON text (`msgspec.Raw`).
Source: docs/reference/webhook.md, "Request handling".
"""

import re
from typing import Final

import msgspec
from msgspec import Raw, Struct
from nvdra_api import json_text

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

_ABSENT: Final = (Raw(), Raw(b"null"))
"""JSON of a part that is not there."""
UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for JSON of another form, for bytes that are not UTF-8, and for JSON that is
nested more deeply than Python allows, which it does not exceed."""

_UID: Final = re.compile(rb'"request"\s*:\s*\{\s*"uid"\s*:\s*"([0-9A-Za-z-]{1,64})"')
_UID_WITHIN: Final = 1024
"""Where the API server writes the UID: it is the first field of the request."""


class ReviewError(ValueError):
    """A request body is no AdmissionReview that can be answered."""


class RefusedReviewError(ReviewError):
    """A request can be answered, but something in it exceeds a bound of `json_text`.

    Attributes:
        uid: Of the request.
    """

    def __init__(self, uid: str, message: str) -> None:
        super().__init__(message)
        self.uid = uid


class GroupVersionResource(Struct, frozen=True):
    """A resource as the API server names it."""

    group: str = ""
    version: str = ""
    resource: str = ""

    def __str__(self) -> str:
        """Return `{<group> <version> <resource>}`, as Go prints it."""
        return f"{{{self.group} {self.version} {self.resource}}}"


class GroupVersionKind(Struct, frozen=True):
    """A kind as the API server names it."""

    group: str = ""
    version: str = ""
    kind: str = ""


class Request(Struct, rename="camel", frozen=True):
    """What is asked.

    Attributes:
        object: JSON of the object as it will be; absent when it is deleted.
        old_object: JSON of the object as it was; absent when it is created.
    """

    uid: str = ""
    kind: GroupVersionKind = GroupVersionKind()
    resource: GroupVersionResource = GroupVersionResource()
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    object: Raw = Raw()
    old_object: Raw = Raw()


class _Review(Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: Request | None = None


class Cause(Struct, frozen=True):
    """One problem (`metav1.StatusCause`)."""

    reason: str
    message: str
    field: str


class Details(Struct, frozen=True):
    """What a refusal is about (`metav1.StatusDetails`)."""

    name: str
    group: str
    kind: str
    causes: tuple[Cause, ...]


class Status(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Why a request is refused (`metav1.Status`)."""

    message: str
    reason: str
    code: int
    status: str
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    details: Details | None = None


class Verdict(Struct, frozen=True):
    """The answer to a request.

    Attributes:
        status: Why it is refused; None if it is allowed.
        warnings: Shown to the user by kubectl, one line each.
        config_errors: Kinds of the configs that have problems, for metrics.
    """

    status: Status | None = None
    warnings: tuple[str, ...] = ()
    config_errors: tuple[str, ...] = ()

    @property
    def is_allowed(self) -> bool:
        """Whether the object may be stored."""
        return self.status is None


class _Response(Struct, omit_defaults=True):
    uid: str
    allowed: bool
    status: Status | None = None
    warnings: tuple[str, ...] = ()


class _Answer(Struct, rename="camel"):
    kind: str
    api_version: str
    response: _Response


_DECODER: Final = msgspec.json.Decoder(_Review)
_ENCODER: Final = msgspec.json.Encoder()


def is_absent(json: Raw) -> bool:
    """Whether a part of a request is missing or null."""
    return json in _ABSENT


def decode(body: bytes) -> Request:
    """Return the request of an AdmissionReview.

    Raises:
        RefusedReviewError: The object has what Go's parser lets through, and none of ours does.
        ReviewError: The body is something else.
    """
    try:
        review = _DECODER.decode(body or b"{}")
    except UNDECODABLE as error:
        found, uid = json_text.find_excess(body), _UID.search(body, 0, _UID_WITHIN)
        if found is not None and uid is not None:
            field = found.path.removeprefix("request.object.")
            message = f"object could not be decoded: {field}: {found.why}"
            raise RefusedReviewError(uid[1].decode(), message) from error
        raise ReviewError(
            f"request could not be decoded: couldn't get version/kind; json parse error: {error}"
        ) from error
    if not review.kind:
        shown = body[:200].decode(errors="replace")
        raise ReviewError(f"request could not be decoded: Object 'Kind' is missing in '{shown}'")
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        raise ReviewError(
            f"unsupported group version kind: {review.api_version}, Kind={review.kind}; expected "
            f"{API_VERSION}, Kind={KIND}"
        )
    if review.request is None:
        raise ReviewError(f"{KIND} has no request")
    return review.request


def encode(uid: str, verdict: Verdict) -> bytes:
    """Return the AdmissionReview that answers the request with this UID."""
    response = _Response(uid, verdict.is_allowed, verdict.status, verdict.warnings)
    return _ENCODER.encode(_Answer(KIND, API_VERSION, response))
