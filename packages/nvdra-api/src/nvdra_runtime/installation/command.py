# SPDX-License-Identifier: Apache-2.0
"""The command `nvdra-check-installation`, which the charts' `helm test` runs.

It looks again until everything is well or its time has passed, so that it can be run as soon as
helm has made the objects, and prints one line for each check.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

from nvdra_api.__about__ import __version__
from nvdra_api.errors import DriverError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from nvdra_runtime.installation.checker import Checker
from nvdra_runtime.installation.findings import Checks, Finding
from nvdra_runtime.kube import client as kube
from nvdra_runtime.kube.connection import KubeSettings
from nvdra_runtime.process import output
from nvdra_runtime.settings import durations, fields, loader

PROGRAM: Final = "nvdra-check-installation"
_PAUSE_S: Final = 1.0


def _checks(value: object) -> object:
    return Checks.model_validate_json(value) if isinstance(value, str) else value


def _duration(value: object) -> object:
    return durations.parse_seconds(value) if isinstance(value, str) else value


class Settings(BaseModel):
    """Checks an installation of nvdra as an administrator would, and says what to do.

    The charts run it in a pod, by `helm test`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    checks: Annotated[Checks, BeforeValidator(_checks)] = Field(
        default=Checks(), description="What to check, as JSON. The charts write it."
    )
    timeout: Annotated[float, BeforeValidator(_duration)] = Field(
        default=60.0, ge=0, description="How long to wait until everything is well."
    )
    kubeconfig: fields.Kubeconfig = ""


def main(argv: Sequence[str] | None = None) -> None:
    """Check, print the report, and exit.

    Raises:
        SystemExit: 0 if everything is well, otherwise 1.
    """
    settings = loader.load(Settings, program=PROGRAM, version=__version__, argv=argv)
    found = asyncio.run(_look_until_good(settings))
    output.print_or_exit("".join(f"{each}\n" for each in found))
    raise SystemExit(0 if all(each.is_good for each in found) else 1)


async def _look_until_good(settings: Settings) -> Sequence[Finding]:
    """What was found last: as soon as everything is well, or when the time has passed."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + settings.timeout
    while True:
        found = await _look(settings)
        if all(each.is_good for each in found) or loop.time() + _PAUSE_S > deadline:
            return found
        await asyncio.sleep(_PAUSE_S)


async def _look(settings: Settings) -> Sequence[Finding]:
    connection = KubeSettings(settings.kubeconfig, user_agent=f"{PROGRAM}/{__version__}")
    try:
        async with kube.connect(connection) as api:
            return await Checker(api, settings.checks).look()
    except DriverError as error:
        return [
            Finding(
                text=error.message,
                remedy=error.remedy or "check whether pods can reach the API server",
            )
        ]
