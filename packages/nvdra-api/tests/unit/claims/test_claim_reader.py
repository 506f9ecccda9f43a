# SPDX-License-Identifier: Apache-2.0
"""A claim is read until the API server answers, the deadline is near, or the claim is unwanted."""

import asyncio
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID, NodeName
from nvdra_api.resource.claims import ClaimRef, ResourceClaim
from nvdra_runtime.claims.claim_reader import ATTEMPT_TIMEOUT_S, RETRY_BACKOFF, ClaimReader
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import Overloaded
from nvdra_runtime.telemetry import instrumentation
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from nvdra_testing import virtual_time

NODE = NodeName("node-a")
REF = ClaimRef("ml", "a", ClaimUID("uid-a"))
CLAIM = ResourceClaim.model_validate({"metadata": {"namespace": "ml", "name": "a", "uid": REF.uid}})
SINCE = datetime(2026, 1, 1, tzinfo=UTC)
NO_ANSWER = RetryableError(
    Reason.API_UNAVAILABLE, "no answer", "wait", since=SINCE, host="https://api"
)


class LoopClock:
    """Follows the loop's virtual time."""

    def now(self) -> datetime:
        return SINCE + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return now()


class ApiServer(Client):
    """Gives one answer after the other, and the last one again and again.

    Attributes:
        asked: When the claim was read.
        deadlines: Until when each read may take.
    """

    def __init__(self, *answers: ResourceClaim | DriverError) -> None:
        self.asked: list[float] = []
        self.deadlines: list[float] = []
        self._answers = list(answers)

    async def get_claim(self, ref: ClaimRef, deadline: float) -> ResourceClaim:
        assert ref == REF
        self.asked.append(now())
        self.deadlines.append(deadline)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, DriverError):
            raise answer
        return answer


class Setting:
    def __init__(self, *answers: ResourceClaim | DriverError) -> None:
        self.api = ApiServer(*answers)
        self.telemetry = Telemetry(
            LoopClock(), PluginMetrics(driver="port.example.com", node=NODE), TraceRecorder()
        )
        self.wait_queue = DeviceWaitQueue(never)
        self.reader = ClaimReader(self.api, self.wait_queue, self.telemetry)


async def never(_: ClaimUID) -> None:
    raise AssertionError("nothing here waits for a device")


def now() -> float:
    return asyncio.get_running_loop().time()


def failure(setting: Setting, deadline: float) -> DriverError:
    """What a read ends with."""

    async def main() -> DriverError:
        with pytest.raises(DriverError) as caught:
            await setting.reader.fetch(REF, deadline)
        return caught.value

    return virtual_time.run_with_virtual_time(main)


def test_a_claim_is_read_once_if_the_api_server_answers() -> None:
    setting = Setting(CLAIM)
    found = virtual_time.run_with_virtual_time(lambda: setting.reader.fetch(REF, 45.0))
    assert found == CLAIM
    assert setting.api.asked == [0.0]


def test_one_read_takes_no_longer_than_an_attempt_or_the_deadline_allows() -> None:
    setting = Setting(CLAIM)

    async def main() -> None:
        await setting.reader.fetch(REF, 45.0)
        await setting.reader.fetch(REF, 3.0)

    virtual_time.run_with_virtual_time(main)
    assert setting.api.deadlines == [ATTEMPT_TIMEOUT_S, 3.0]


def test_a_read_is_repeated_ever_later_until_the_api_server_answers() -> None:
    setting = Setting(*[NO_ANSWER] * 10, CLAIM)
    found = virtual_time.run_with_virtual_time(lambda: setting.reader.fetch(REF, 45.0))
    assert found == CLAIM
    asked = setting.api.asked
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert len(pauses) == 10
    for failures, pause in enumerate(pauses, start=1):
        longest = RETRY_BACKOFF.delay(failures, 0.0)
        assert 0.8 * longest <= pause <= longest + 1e-9


def test_each_repeated_read_is_in_the_span_of_the_step() -> None:
    setting = Setting(NO_ANSWER, NO_ANSWER, CLAIM)

    async def main() -> None:
        trace, root = instrumentation.claim_trace_and_root(REF, NODE)
        with setting.telemetry.operation("prepare", trace=trace, parent=root):
            await setting.reader.fetch(REF, 45.0)

    virtual_time.run_with_virtual_time(main)
    (trace,) = setting.telemetry.recorder.traces()
    (step,) = [span for span in trace.spans if span.name == "fetch claim"]
    assert [event.name for event in step.events] == ["retry", "retry"]


@pytest.mark.parametrize("reason", [Reason.CLAIM_NOT_FOUND, Reason.CLAIM_UID_CHANGED])
def test_a_claim_that_is_gone_is_not_read_again(reason: Reason) -> None:
    gone = PermanentError(reason, "there is no such claim")
    setting = Setting(NO_ANSWER, gone)
    assert failure(setting, 45.0) is gone
    assert len(setting.api.asked) == 2


def test_near_the_deadline_the_last_error_says_how_often_the_claim_was_read() -> None:
    setting = Setting(NO_ANSWER)
    error = failure(setting, 10.0)
    attempts = len(setting.api.asked)
    last = setting.api.asked[-1]
    assert 10.0 - RETRY_BACKOFF.ceiling_s <= last < 10.0
    assert attempts > 5
    assert isinstance(error, RetryableError)
    assert error.message == f"no answer (asked {attempts} times in {last:.0f} s)"
    assert (error.reason, error.remedy, error.since, error.facts) == (
        NO_ANSWER.reason,
        NO_ANSWER.remedy,
        NO_ANSWER.since,
        NO_ANSWER.facts,
    )


def test_without_time_for_a_second_read_the_error_is_the_first_one() -> None:
    setting = Setting(NO_ANSWER)
    assert failure(setting, 0.01) is NO_ANSWER
    assert setting.api.asked == [0.0]


def test_an_overloaded_api_server_is_left_alone_for_as_long_as_it_asks() -> None:
    setting = Setting(Overloaded("too many requests", 7.0), CLAIM)
    virtual_time.run_with_virtual_time(lambda: setting.reader.fetch(REF, 45.0))
    assert setting.api.asked == [0.0, pytest.approx(7.0)]


def test_an_overloaded_api_server_is_not_asked_again_after_the_deadline() -> None:
    setting = Setting(Overloaded("too many requests", 7.0), CLAIM)
    assert failure(setting, 5.0).message == "too many requests"
    assert setting.api.asked == [0.0]


@pytest.mark.parametrize("end", [DeviceWaitQueue.close, lambda queue: queue.cancel(REF.uid)])
def test_an_unprepare_or_the_end_of_the_process_ends_the_pause(
    end: Callable[[DeviceWaitQueue], Any],
) -> None:
    setting = Setting(Overloaded("too many requests", 30.0))

    async def main() -> float:
        asyncio.get_running_loop().call_later(2.0, end, setting.wait_queue)
        with pytest.raises(RetryableError, match="too many requests"):
            await setting.reader.fetch(REF, 45.0)
        return now()

    assert virtual_time.run_with_virtual_time(main) == pytest.approx(2.0)
    assert setting.api.asked == [0.0]
