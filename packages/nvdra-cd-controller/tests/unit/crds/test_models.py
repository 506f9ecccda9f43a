# SPDX-License-Identifier: Apache-2.0
"""The models of custom resources have the whole schema of the controller's definitions."""

import copy
from typing import Any

import pytest
from nvdra_api.meta import ApiModel
from nvdra_api.v1beta1 import ComputeDomain, ComputeDomainClique
from nvdra_cd_controller.crds import definitions

CONSTRAINTS = ("type", "enum", "format", "minimum", "minLength", "maxLength", "maxItems", "pattern")

Schema = dict[str, Any]


def of_definition(name: str) -> Schema:
    """The OpenAPI schema of the only version of a definition."""
    (definition,) = (own for own in definitions.own() if own.name.startswith(f"{name}."))
    (version,) = copy.deepcopy(definition.document)["spec"]["versions"]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema


def of_model(model: type[ApiModel]) -> Schema:
    """The JSON schema of a model, without references and without the null of optional fields."""
    whole = model.model_json_schema(by_alias=True)
    resolved: Schema = _resolved(whole, whole.get("$defs", {}))
    return resolved


def _resolved(schema: Any, definitions: Schema) -> Any:
    if isinstance(schema, list):
        return [_resolved(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
        return _resolved(
            {**target, **{k: v for k, v in schema.items() if k != "$ref"}}, definitions
        )
    if "anyOf" in schema:
        (only,) = (each for each in schema["anyOf"] if each.get("type") != "null")
        rest = {name: each for name, each in schema.items() if name != "anyOf"}
        return _resolved({**rest, **only}, definitions)
    return {name: _resolved(each, definitions) for name, each in schema.items()}


def differences(model: Schema, definition: Schema, path: str) -> list[str]:
    """Where two schemas differ, below a path."""
    found = [
        f"{path}: {name} is {model.get(name)!r}, the definition has {definition.get(name)!r}"
        for name in CONSTRAINTS
        if _comparable(model.get(name)) != _comparable(definition.get(name))
    ]
    if "default" in definition and model.get("default") != definition["default"]:
        found.append(f"{path}: default is {model.get('default')!r}, not {definition['default']!r}")
    if path.endswith(".metadata"):
        return found  # Its fields are the API machinery's.
    if set(model.get("required", ())) - {"metadata"} != set(definition.get("required", ())):
        found.append(f"{path}: required is {model.get('required')}, not {definition['required']}")
    ours, theirs = model.get("properties", {}), definition.get("properties", {})
    found += [f"{path}: only one has {name}" for name in sorted(ours.keys() ^ theirs.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        found += differences(ours[name], theirs[name], f"{path}.{name}")
    if "items" in definition:
        found += differences(model.get("items", {}), definition["items"], f"{path}[]")
    return found


def _comparable(constraint: Any) -> Any:
    return sorted(constraint) if isinstance(constraint, list) else constraint


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (ComputeDomain, "computedomains"),
        (ComputeDomainClique, "computedomaincliques"),
    ],
)
def test_a_model_has_the_schema_of_its_definition(model: type[ApiModel], name: str) -> None:
    assert differences(of_model(model), of_definition(name), model.__name__) == []


def test_a_difference_is_found_wherever_it_is() -> None:
    definition = of_definition("computedomains")
    nodes = definition["properties"]["status"]["properties"]["nodes"]
    nodes["items"]["properties"]["index"]["minimum"] = -1
    del nodes["items"]["properties"]["ipAddress"]
    definition["properties"]["spec"]["properties"]["numNodes"]["default"] = 1
    definition["properties"]["spec"]["required"] = []
    assert len(differences(of_model(ComputeDomain), definition, "ComputeDomain")) == 4
