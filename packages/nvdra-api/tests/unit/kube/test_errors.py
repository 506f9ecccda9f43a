# SPDX-License-Identifier: Apache-2.0
"""Each refusal of the API server becomes the error that says who must act, and no other."""

import json

import pytest
from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.kube import errors
from nvdra_runtime.kube.errors import (
    Conflict,
    Gone,
    Invalid,
    NotFound,
    NotServed,
    Overloaded,
    Refused,
    error_for_status,
)
from nvdra_testing import virtual_time
from nvdra_testing.faults import recorded_api
from nvdra_testing.faults.recorded_api import Answer, RecordedApi

PATH = "/api/v1/nodes/node-a"
REF = ClaimRef("ml", "train", ClaimUID("uid-1"))


def refusal(code: int, **details: object) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "message": "no", **details}).encode()


@pytest.mark.parametrize(
    ("code", "details", "type_", "advice"),
    [
        (400, {}, Refused, ""),
        (401, {}, RetryableError, "credentials"),
        (403, {"details": {"name": "node-a"}}, Refused, "grant"),
        (404, {"details": {"name": "node-a"}}, NotFound, ""),
        (404, {}, NotServed, "CustomResourceDefinitions"),
        (409, {}, Conflict, ""),
        (410, {}, Gone, ""),
        (422, {}, Invalid, ""),
        (429, {}, Overloaded, "overloaded"),
        (500, {}, RetryableError, ""),
        (503, {}, RetryableError, ""),
    ],
)
def test_the_status_decides_the_error(
    code: int, details: dict[str, object], type_: type[DriverError], advice: str
) -> None:
    error = error_for_status("PATCH", PATH, code, refusal(code, **details))
    assert type(error) is type_
    assert error.reason is Reason.API_UNAVAILABLE
    assert error.message == f"PATCH {PATH}: {code}: no"
    assert advice in error.remedy
    assert bool(error.remedy) == bool(advice)


def test_a_server_that_says_when_is_not_asked_before() -> None:
    for code, retry_after_s, expected_s in ((429, None, 1.0), (429, 7.0, 7.0), (503, 2.0, 2.0)):
        error = error_for_status("GET", PATH, code, b"busy", retry_after_s)
        assert isinstance(error, Overloaded)
        assert error.retry_after_s == expected_s


def test_a_page_of_a_proxy_is_no_proof_that_an_object_is_gone() -> None:
    page = b"<html>404: no such site</html>"
    assert type(error_for_status("GET", PATH, 404, page)) is NotServed


def read_claim(answer: Answer) -> DriverError:
    async def main() -> DriverError:
        api = RecordedApi(lambda _: answer)
        with pytest.raises(DriverError) as caught:
            await api.get_claim(REF, 5.0)
        return caught.value

    return virtual_time.run_with_virtual_time(main)


def test_a_claim_is_gone_only_if_the_server_says_that_it_does_not_exist() -> None:
    gone = read_claim(recorded_api.status(404, "NotFound"))
    assert (type(gone), gone.reason) == (PermanentError, Reason.CLAIM_NOT_FOUND)
    for code in (401, 403, 410, 500):
        error = read_claim(recorded_api.status(code, "Forbidden"))
        assert isinstance(error, RetryableError), code
        assert error.reason is Reason.API_UNAVAILABLE


def test_a_claim_of_the_same_name_is_another_claim() -> None:
    other = {"metadata": {"namespace": "ml", "name": "train", "uid": "uid-2"}}
    error = read_claim((200, other))
    assert (type(error), error.reason) == (PermanentError, Reason.CLAIM_UID_CHANGED)
    assert "its UID is now uid-2" in error.message


def test_a_long_page_is_cut() -> None:
    text = error_for_status("GET", PATH, 500, b"x" * 5000).message
    assert text == f"GET {PATH}: 500: {'x' * errors._MAX_TEXT_LENGTH}…"
