# SPDX-License-Identifier: Apache-2.0
"""The base of the opaque device configs that users put into claims and DeviceClasses.

`nvdra_api.decoding` creates configs from JSON documents.
Source: docs/reference/api-types.md, "Opaque configuration types".
"""

from abc import abstractmethod
from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, ConfigDict, GetJsonSchemaHandler, StrictStr
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from nvdra_api.gates import FeatureGates
from nvdra_api.meta import JsonObject, WireModel
from nvdra_api.names import NVIDIA_API_VERSION
from nvdra_api.validation import Problem

NullableText = Annotated[StrictStr, BeforeValidator(lambda value: "" if value is None else value)]
"""A string for which a JSON document may have a null, which means the empty string."""


class ConfigModel(WireModel):
    """An object of a config. Values of another JSON type are refused, not converted."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})


class DeviceConfig(ConfigModel):
    """The base class of all config kinds. A config without arguments is the default of its kind."""

    kind: ClassVar[str]

    @abstractmethod
    def normalized(self, gates: FeatureGates) -> Self:
        """Return this config with its implied defaults written out."""

    @abstractmethod
    def problems(self, gates: FeatureGates) -> tuple[Problem, ...]:
        """Return everything that is invalid. The config may be used if the result is empty."""

    def to_manifest(self) -> JsonObject:
        """Return the JSON document, without unset fields and empty maps."""
        body = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {"kind": self.kind, "apiVersion": NVIDIA_API_VERSION, **body}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the JSON schema of the document, which also has `apiVersion` and `kind`."""
        reference = super().__get_pydantic_json_schema__(core_schema, handler)
        schema = handler.resolve_ref_schema(reference)
        schema["properties"] = {
            "apiVersion": {"const": NVIDIA_API_VERSION, "type": "string"},
            "kind": {"const": cls.kind, "type": "string"},
            **schema.get("properties", {}),
        }
        schema["required"] = ["apiVersion", "kind", *schema.get("required", ())]
        return reference
