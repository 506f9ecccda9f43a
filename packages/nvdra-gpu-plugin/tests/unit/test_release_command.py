# SPDX-License-Identifier: Apache-2.0
"""The commands `release` and `resume` against a debug endpoint."""

import asyncio
import io
from collections.abc import Mapping
from typing import Any

import pytest
from nvdra_api.errors import PermanentError, Reason
from nvdra_gpu_plugin import release_command
from nvdra_runtime.http import debug_endpoint, listener
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.logs import LogFormat
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder


async def run(*arguments: str) -> tuple[int, list[Mapping[str, Any]]]:
    """The exit code of `release` with these arguments, and what the plugin was asked."""
    asked: list[Mapping[str, Any]] = []

    async def act(document: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.append(document)
        if not document["is_forced"]:
            raise PermanentError(Reason.DEVICE_IN_USE, "gpu-1 is held")
        return {"text": "NVML is released"}

    logging = logs.configure(LogFormat.TEXT, 0, "test", io.StringIO())
    routes = debug_endpoint.routes(
        TraceRecorder(), logging, SystemClock(), lambda: {}, {"nvml/release": act}
    )
    try:
        async with listener.listen("127.0.0.1:0", routes) as address:
            argv = [f"--debug-endpoint={address}", *arguments]
            return await asyncio.to_thread(release_command.release, argv), asked
    finally:
        logging.close()


async def test_the_plugin_is_asked_for_ten_minutes_unless_told_otherwise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, asked = await run("--force")
    assert code == 0
    assert asked == [{"duration_s": 600, "is_forced": True}]
    assert capsys.readouterr().out == "NVML is released\n"
    assert (await run("--force", "--for=1h30m"))[1][0]["duration_s"] == 5400


async def test_a_refusal_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, asked = await run()
    assert code == 1
    assert not asked[0]["is_forced"]
    assert capsys.readouterr().err == "Error: DeviceInUse: gpu-1 is held\n"


@pytest.mark.parametrize("duration", ["soon", "0s", "-1m", "15"])
def test_a_time_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], duration: str) -> None:
    with pytest.raises(SystemExit):
        release_command.release([f"--for={duration}"])
    assert "--for: " in capsys.readouterr().err


def test_a_plugin_that_is_not_there_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert release_command.resume(["--debug-endpoint=127.0.0.1:1"]) == 1
    assert "Is nvdra-gpu-plugin running here?" in capsys.readouterr().err
