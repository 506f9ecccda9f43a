# SPDX-License-Identifier: Apache-2.0
"""Makes the cluster's definitions those that this controller needs, and says what they lack.

helm cannot: what is in `crds/` it never upgrades, and a template fails where another project has
installed the definition. Source: docs/decisions/cd-controller.md, "Who installs the CRDs?".
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Final

from nvdra_api.errors import DriverError, Reason
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import NotFound
from nvdra_runtime.kube.event_recorder import EventRecorder, ObjectReference
from nvdra_runtime.process import background_tasks
from nvdra_runtime.telemetry import logs

from nvdra_cd_controller import api_paths
from nvdra_cd_controller.crds import definitions, dropped_fields
from nvdra_cd_controller.crds.definitions import Definition

LOG = logs.logger(__name__)

_NO_CONVERTER: Final = {"spec": {"conversion": {"strategy": "None", "webhook": None}}}
"""A merge patch: an apply keeps what another field manager has written."""
_API_VERSION: Final = "apiextensions.k8s.io/v1"
_FIELD_MANAGER: Final = "nvdra-cd-controller"
_CALL_TIMEOUT_S: Final = 10.0
_ESTABLISHED_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.1
_LOOK_S: Final = 600.0
"""Between two looks: another project may install or upgrade the definitions at any time."""
_RETRY_S: Final = 15.0


class Install(StrEnum):
    """Which definitions the controller writes.

    `auto`: what is missing, and earlier texts of its own; `always`: also those of others; `never`:
    none.
    """

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def must_write(own: Definition, found: Definition | None, install: Install) -> bool:
    """Whether a definition is to be written."""
    if install is Install.NEVER:
        return False
    if found is None or own.is_later_text_of(found):
        return True
    is_kept = found.is_later_text_of(own) or own.has_text_of(found)
    return install is Install.ALWAYS and not is_kept


def must_end_conversion(own: Definition, found: Definition, install: Install) -> bool:
    """Whether another user has set a webhook that converts the objects of our definition.

    Ours has one version, and needs none.
    """
    return install is not Install.NEVER and own.is_text_of(found) and found.has_converter


class CrdKeeper:
    """The definitions of one cluster. The controller that leads keeps them."""

    def __init__(self, api: Client, events: EventRecorder, install: Install) -> None:
        self._api = api
        self._events = events
        self._install = install
        self._remarks: dict[str, str] = {}

    @property
    def remark(self) -> str:
        """What the definitions lack, or why that is not known, for `/readyz`; empty if nothing."""
        return "; ".join(filter(None, self._remarks.values()))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the definitions once before the block, and repeatedly while it runs.

        Without them there is nothing to list. A failure does not end it: informers say so as well.
        """
        is_kept = await self._keep_all()

        async def keep_on() -> None:
            nonlocal is_kept
            while True:
                await asyncio.sleep(_LOOK_S if is_kept else _RETRY_S)
                is_kept = await self._keep_all()

        async with background_tasks.running(definitions=keep_on):
            yield

    async def _keep_all(self) -> bool:
        """Keep each definition. Returns whether all are known."""
        is_kept = True
        for own in definitions.own():
            try:
                served = await self._keep(own)
            except DriverError as error:
                is_kept = False
                self._note(own, "A definition cannot be read or written", error.event_text)
            else:
                self._compare(own, served)
        return is_kept

    async def _keep(self, own: Definition) -> Definition | None:
        """Write a definition if that is to be done, and return what is served."""
        found = await self._find(own)
        path = api_paths.path("CustomResourceDefinition", name=own.name)
        if found is not None and must_end_conversion(own, found, self._install):
            deadline = _deadline(_CALL_TIMEOUT_S)
            await self._api.patch(path, _NO_CONVERTER, deadline, "application/merge-patch+json")
            LOG.warning("A webhook converts objects no longer", definition=own.name)
        if not must_write(own, found, self._install):
            return found
        await self._api.patch(
            path,
            own.document,
            _deadline(_CALL_TIMEOUT_S),
            "application/apply-patch+yaml",
            {"fieldManager": _FIELD_MANAGER, "force": "true"},
        )
        LOG.info("Wrote a definition", definition=own.name, existed=found is not None)
        return await self._wait_established(own)

    async def _wait_established(self, own: Definition) -> Definition | None:
        deadline = _deadline(_ESTABLISHED_TIMEOUT_S)
        while True:
            served = await self._find(own)
            if served is None or served.is_established:
                return served
            if asyncio.get_running_loop().time() > deadline:
                return served
            await asyncio.sleep(_POLL_S)

    async def _find(self, own: Definition) -> Definition | None:
        path = api_paths.path("CustomResourceDefinition", name=own.name)
        try:
            return Definition(await self._api.get(path, _deadline(_CALL_TIMEOUT_S)))
        except NotFound:
            return None

    def _compare(self, own: Definition, served: Definition | None) -> None:
        if served is None:
            self._note(own, "There is no definition", f"{own.name} does not exist; {_REMEDY}")
            return
        lack = dropped_fields.find(own, served)
        text = f"the CustomResourceDefinition {own.name} {lack}; {_REMEDY}" if lack else ""
        if self._note(own, "A definition lacks what this version has", text):
            uid = str(served.document["metadata"]["uid"])
            reference = ObjectReference(_API_VERSION, "CustomResourceDefinition", own.name, uid)
            self._events.emit((reference,), "Warning", Reason.FIELDS_DROPPED, text)

    def _note(self, own: Definition, message: str, text: str) -> bool:
        """Log a problem of a definition, unless it is the last one. Returns whether it is new."""
        if text == self._remarks.get(own.name, ""):
            return False
        self._remarks[own.name] = text
        if text:
            LOG.warning(message, definition=own.name, problem=text)
        return bool(text)


_REMEDY: Final = (
    "domains work with less; for the rest let the controller write it (crds.install=always of the "
    "chart, --crds=always), or apply what the command nvdra-cd-controller crds prints"
)


def _deadline(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds
