# SPDX-License-Identifier: Apache-2.0
"""The CustomResourceDefinitions that this version has, and whose one of a cluster is.

They are files beside this module, so that `kubectl apply` takes them as well.
"""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

import yaml
from nvdra_api.meta import JsonObject

VERSION_ANNOTATION: Final = "resource.nvidia.com/definition-version"
"""Which text of the definition it is: a whole number, higher for each later text."""

_FILES: Final = ("computedomaincliques.yaml", "computedomains.yaml")


@dataclass(frozen=True, slots=True)
class Definition:
    """A CustomResourceDefinition of `apiextensions.k8s.io/v1`.

    Attributes:
        document: The whole object.
    """

    document: JsonObject

    @property
    def name(self) -> str:
        """Its name, `<plural>.<group>`."""
        return str(self.document["metadata"]["name"])

    @property
    def version(self) -> int:
        """The number of its text; 0 before there were numbers, or if it has none that is one."""
        annotations = self.document["metadata"].get("annotations") or {}
        number = str(annotations.get(VERSION_ANNOTATION, ""))
        return int(number) if number.isascii() and number.isdecimal() and len(number) < 9 else 0

    @property
    def description(self) -> str:
        """What its kind is, in a sentence."""
        first = self.document["spec"]["versions"][0]
        schema = (first.get("schema") or {}).get("openAPIV3Schema") or {}
        return str(schema.get("description", ""))

    @property
    def is_established(self) -> bool:
        """Whether the API server serves its objects."""
        conditions = (self.document.get("status") or {}).get("conditions") or ()
        return any(
            condition["type"] == "Established" and condition["status"] == "True"
            for condition in conditions
        )

    @property
    def has_converter(self) -> bool:
        """Whether a webhook converts its objects, which the API server then sends to it."""
        conversion = self.document["spec"].get("conversion") or {}
        return str(conversion.get("strategy", "None")) != "None"

    @property
    def _versions(self) -> list[JsonObject]:
        return list(self.document["spec"]["versions"])

    def is_text_of(self, found: "Definition") -> bool:
        """Whether the found definition is one of ours, of whatever version.

        It is known by the description: another project's definition of the same kind has other
        words. The number is no sign of it, as an apply of another project's text keeps annotations.
        """
        return found.description == self.description

    def has_text_of(self, found: "Definition") -> bool:
        """Whether the found definition serves what this one says."""
        return self._versions == found._versions

    def is_later_text_of(self, found: "Definition") -> bool:
        """Whether the found definition is one of ours, and earlier than this one."""
        return self.is_text_of(found) and found.version < self.version


def text() -> str:
    """The definitions of this version as YAML documents."""
    return "---\n".join(map(_read, _FILES))


@cache
def own() -> tuple[Definition, ...]:
    """The definitions of this version."""
    return tuple(Definition(yaml.safe_load(_read(name))) for name in _FILES)


def _read(name: str) -> str:
    return (resources.files(__package__) / name).read_text()
