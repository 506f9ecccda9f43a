# SPDX-License-Identifier: Apache-2.0
"""The parts that API objects have in common (`k8s.io/apimachinery/pkg/apis/meta/v1`)."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

JsonObject = dict[str, Any]
"""A JSON object, such as an API object in the form in which the API server sent it."""


class WireModel(BaseModel):
    """A JSON object: frozen, with camelCase names in JSON.

    A field that JSON documents must have, although the Python model has a default for it, is
    declared with `json_schema_extra={"required": True}`. The default lets the model read objects
    that an older or a more permissive release has stored.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the JSON schema, with the declared fields in the object's list `required`."""
        reference = handler(core_schema)
        schema = handler.resolve_ref_schema(reference)
        properties = schema.get("properties", {})
        required = [name for name, field in properties.items() if field.pop("required", False)]
        if required:
            schema["required"] = [*schema.get("required", ()), *required]
        return reference


class ApiModel(WireModel):
    """An API object or a part of one. Unknown fields are kept, because the server may be newer.

    To change an object of the API server, patch it or change the JSON that the server sent. Do not
    write back the model.
    """

    model_config = ConfigDict(extra="allow")


class OwnerReference(ApiModel):
    """The owner of an object. The garbage collector deletes the object when its owners are gone."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(ApiModel):
    """`metadata` of an API object."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    self_link: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    managed_fields: tuple[JsonObject, ...] = ()


class Condition(ApiModel):
    """One entry of `status.conditions`."""

    type: str = Field(
        json_schema_extra={
            "maxLength": 316,
            "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
            r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        }
    )
    status: Literal["True", "False", "Unknown"]
    observed_generation: int = Field(default=0, json_schema_extra={"format": "int64", "minimum": 0})
    last_transition_time: datetime | None = Field(
        default=None, json_schema_extra={"required": True}
    )
    reason: str = Field(
        default="",
        json_schema_extra={
            "required": True,
            "minLength": 1,
            "maxLength": 1024,
            "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        },
    )
    message: str = Field(default="", json_schema_extra={"required": True, "maxLength": 32768})
