# SPDX-License-Identifier: Apache-2.0
"""The parts of a ResourceClaim or ResourceClaimTemplate that a verdict is about.

v1, v1beta2 and v1beta1 have the same list of configs; a request of v1beta1 has in itself what the
others have in `exactly`. Other fields are not decoded, so a newer API server may send more.
Source: docs/reference/webhook.md, "Evaluation".
"""

from collections.abc import Hashable, Iterator, Set
from contextlib import suppress
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct
from nvdra_api import json_text

from nvdra_webhook.admission import review

CLAIM: Final = "ResourceClaim"
TEMPLATE: Final = "ResourceClaimTemplate"
MAX_ENTRIES: Final = 32
"""How many requests, configs, selectors and names in a config the API server allows. It checks them
before it asks, but others can reach the port."""

_T = TypeVar("_T")
Entries = Annotated[tuple[_T, ...], Meta(max_length=MAX_ENTRIES)]


class CelSelector(Struct, frozen=True):
    """A CEL expression."""

    expression: str = ""


class Selector(Struct, frozen=True):
    """A condition that a device must meet."""

    cel: CelSelector | None = None


class Exact(Struct, rename="camel", frozen=True):
    """What a request asks for."""

    device_class_name: str = ""
    selectors: Entries[Selector] | None = None
    capacity: Raw = Raw()
    admin_access: bool | None = None
    count: int | None = None
    allocation_mode: str = ""

    def capacities(self) -> Set[str]:
        """The names of the capacities that are asked for; none in a form that is not known."""
        if not review.is_absent(self.capacity):
            with suppress(*review.UNDECODABLE):
                found = msgspec.json.decode(self.capacity, type=dict[str, dict[str, Raw] | None])
                return (found.get("requests") or {}).keys()
        return frozenset()


class SubRequest(Exact, rename="camel", frozen=True, kw_only=True):
    """One alternative of a request."""

    name: str = ""


class DeviceRequest(Exact, rename="camel", frozen=True, kw_only=True):
    """A request. v1beta1 has the fields of `exactly` here."""

    name: str = ""
    exactly: Exact | None = None
    first_available: Entries[SubRequest] | None = None

    def asked(self) -> Iterator[tuple[str, Exact]]:
        """What is asked for, each with its path below the request."""
        if self.device_class_name:
            yield "", self
        if self.exactly is not None:
            yield ".exactly", self.exactly
        for index, each in enumerate(self.first_available or ()):
            yield f".firstAvailable[{index}]", each

    def names(self) -> Iterator[str]:
        """The names by which configs can refer to the request and its alternatives."""
        yield self.name
        yield from (f"{self.name}/{each.name}" for each in self.first_available or ())

    def named(self) -> Iterator[tuple[str, Exact]]:
        """What is asked for, with the name of the request, or of the alternative of it."""
        if self.device_class_name:
            yield self.name, self
        if self.exactly is not None:
            yield self.name, self.exactly
        for each in self.first_available or ():
            yield f"{self.name}/{each.name}", each


class Opaque(Struct, frozen=True):
    """Parameters for one driver, as JSON text."""

    driver: str = ""
    parameters: Raw = Raw()


class ConfigEntry(Struct, frozen=True):
    """One entry of `devices.config`."""

    requests: Entries[str] | None = None
    opaque: Opaque | None = None

    def is_for(self, driver: str) -> bool:
        """Whether it has parameters for the driver."""
        return self.opaque is not None and self.opaque.driver == driver

    def applies_to(self, name: str) -> bool:
        """Whether it is for the request, or its alternative, of this name, or for all."""
        return not self.requests or not {name, name.partition("/")[0]}.isdisjoint(self.requests)

    def content(self) -> Hashable:
        """What it says, however it is written: equal to that of another one that says the same.

        As bytes with a hash, since values that are equal up to their end take long to compare.
        """
        if self.opaque is None:
            return None
        parameters = bytes(self.opaque.parameters)
        if len(parameters) <= json_text.MAX_CONFIG_BYTES:
            with suppress(*review.UNDECODABLE):  # its own check says what is wrong
                parameters = _SORTED.encode(msgspec.json.decode(parameters))
        return self.requests, self.opaque.driver, parameters


class Devices(Struct, frozen=True):
    """`devices` of the spec."""

    requests: Entries[DeviceRequest] | None = None
    config: Entries[ConfigEntry] | None = None


class _Metadata(Struct, rename="camel", frozen=True):
    name: str = ""
    generate_name: str = ""
    deletion_timestamp: str | None = None


class _Spec(Struct, frozen=True):
    devices: Devices | None = None


class _TemplateSpec(Struct, frozen=True):
    spec: _Spec | None = None


class Claim(Struct, rename="camel", frozen=True):
    """A claim or a template.

    Attributes:
        spec: JSON of the spec; `devices` decodes it.
    """

    api_version: str = ""
    kind: str = ""
    metadata: _Metadata | None = None
    spec: Raw = Raw()

    @property
    def is_being_deleted(self) -> bool:
        """Whether it goes as soon as its last finalizer does."""
        return self.metadata is not None and self.metadata.deletion_timestamp is not None

    @property
    def name(self) -> str:
        """Its name, or the beginning of the one that it will get."""
        return "" if self.metadata is None else self.metadata.name or self.metadata.generate_name

    def devices(self, kind: str) -> Devices:
        """The devices that a claim asks for, or the claims of a template.

        Raises:
            msgspec.MsgspecError: The spec has another form.
        """
        if review.is_absent(self.spec):
            return Devices()
        if kind == TEMPLATE:
            outer = _TEMPLATE_SPEC.decode(self.spec).spec
            return (outer and outer.devices) or Devices()
        return _SPEC.decode(self.spec).devices or Devices()


_SORTED: Final = msgspec.json.Encoder(order="sorted")
_CLAIM: Final = msgspec.json.Decoder(Claim)
_SPEC: Final = msgspec.json.Decoder(_Spec)
_TEMPLATE_SPEC: Final = msgspec.json.Decoder(_TemplateSpec)


def decode(json: Raw) -> Claim:
    """Return the object.

    Raises:
        msgspec.MsgspecError: The JSON has another form.
    """
    return _CLAIM.decode(json)
