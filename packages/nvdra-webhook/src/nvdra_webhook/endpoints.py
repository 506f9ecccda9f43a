# SPDX-License-Identifier: Apache-2.0
"""The paths of the HTTPS port: admission, and the probes that manifests of the reference know.

Source: docs/reference/webhook.md, "Endpoints", "Request handling".
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

from nvdra_api.gates import FeatureGates
from nvdra_runtime.http import probes
from nvdra_runtime.http.probes import Check
from nvdra_runtime.telemetry import logs

from nvdra_webhook.admission import decision, review
from nvdra_webhook.admission.cluster_names import ClusterNames
from nvdra_webhook.admission.decision import Examiner
from nvdra_webhook.admission.review import RefusedReviewError, Request, ReviewError, Verdict
from nvdra_webhook.metrics import WebhookMetrics
from nvdra_webhook.serving.exchange import JSON, TEXT, HttpRequest, HttpResponse

LOG: Final = logs.logger(__name__)

VALIDATE_PATH: Final = "/validate-resource-claim-parameters"
WARN_PATH: Final = "/warn-of-resource-claims"
"""Whatever is sent there is allowed: the objects that have no config of ours."""
READY_PATH: Final = "/readyz"
ALIVE_PATHS: Final = ("/healthz", "/livez")

_SUCCESS: Final = HTTPStatus.OK
"""Looked up once: Python 3.11 runs a function for it."""
_OK: Final = HttpResponse(_SUCCESS, b"ok", TEXT)


class Endpoints:
    """Answers every request of the HTTPS port."""

    def __init__(
        self,
        gates: FeatureGates,
        cluster: Callable[[], ClusterNames],
        ready: Mapping[str, Check],
        metrics: WebhookMetrics,
        clock: Callable[[], float],
    ) -> None:
        """Know what verdicts depend on.

        Args:
            gates: The feature gates.
            cluster: Returns what is known of the cluster now.
            ready: The checks of `/readyz`.
            metrics: Count and time.
            clock: Seconds, for durations.
        """
        self._examiner = Examiner(gates)
        self._cluster = cluster
        self._ready = ready
        self._metrics = metrics
        self._clock = clock

    def respond(self, request: HttpRequest) -> HttpResponse:
        """Answer one request."""
        if request.path in (VALIDATE_PATH, WARN_PATH):
            response = self._review(request)
            if response.status is not _SUCCESS:
                self._metrics.bad_request(response.status)
            return response
        if request.path == READY_PATH:
            return self._probe(request)
        if request.path in ALIVE_PATHS:
            return _OK
        return HttpResponse.of_text(HTTPStatus.NOT_FOUND, "404 page not found")

    def _review(self, request: HttpRequest) -> HttpResponse:
        started = self._clock()
        if request.method != "POST":
            text = f"{request.method} is not allowed, POST an AdmissionReview"
            return HttpResponse.of_text(HTTPStatus.METHOD_NOT_ALLOWED, text, ("Allow", "POST"))
        media_type = request.content_type.partition(";")[0].strip().lower()
        if media_type != JSON:
            text = f"contentType={request.content_type}, expected {JSON}"
            return HttpResponse.of_text(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
        try:
            asked = review.decode(request.body)
            verdict = self._examiner.decide(asked, self._cluster())
        except RefusedReviewError as error:
            asked, verdict = Request(error.uid), decision.bad_request(str(error))
        except ReviewError as error:
            text = f"failed to read AdmissionReview from request body: {error}"
            return HttpResponse.of_text(HTTPStatus.BAD_REQUEST, text)
        if request.path == WARN_PATH:
            verdict = Verdict(warnings=verdict.warnings)
        body = review.encode(asked.uid, verdict)
        seconds = self._clock() - started
        self._metrics.answered(asked, verdict, seconds)
        if LOG.is_enabled(2):
            _log(asked, verdict, seconds)
        return HttpResponse(_SUCCESS, body)

    def _probe(self, request: HttpRequest) -> HttpResponse:
        results = {name: check() for name, check in self._ready.items()}
        is_passed = not any(map(probes.is_failure, results.values()))
        if is_passed and "verbose" not in request.query:
            return _OK
        status = _SUCCESS if is_passed else HTTPStatus.SERVICE_UNAVAILABLE
        text = probes.listing("readyz", results, is_passed=is_passed)
        return HttpResponse(status, text.encode(), TEXT)


def _log(request: Request, verdict: Verdict, seconds: float) -> None:
    LOG.v(
        2,
        "Answered an admission request",
        uid=request.uid,
        resource=request.resource.resource,
        namespace=request.namespace,
        name=request.name,
        operation=request.operation,
        allowed=verdict.is_allowed,
        reason="" if verdict.status is None else verdict.status.message,
        warnings=len(verdict.warnings),
        seconds=round(seconds, 6),
    )
