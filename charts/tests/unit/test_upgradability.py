# SPDX-License-Identifier: Apache-2.0
"""The latest release can be upgraded to these charts: fixed fields and names are the same."""

import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from nvdra_cd_controller.crds import definitions
from nvdra_cd_controller.crds.definitions import Definition
from nvdra_testing import releases, yaml_documents

Objects = dict[tuple[str, str], dict[str, Any]]
KUBE = "1.36.3"


@pytest.fixture(scope="module")
def released(helm: str, tmp_path_factory: pytest.TempPathFactory) -> Objects:
    """The objects of a default installation of the latest release, by kind and name."""
    with releases.checkout(releases.latest("nvdra"), tmp_path_factory.mktemp("release")) as tree:
        argv = (helm, "template", "nvdra", str(tree / "charts/nvdra"))
        where = ("--namespace", "nvdra-system", "--kube-version", KUBE)
        done = subprocess.run([*argv, *where], capture_output=True, text=True, check=True)
    found = (item for item in yaml_documents.load_all(done.stdout) if item is not None)
    return {(item["kind"], item["metadata"]["name"]): item for item in found}


@pytest.fixture
def current(render: Callable[..., Mapping[str, Mapping[str, Any]]]) -> Objects:
    """The objects of a default installation of this state."""
    return {
        (kind, name): item
        for kind, named in render("nvdra", {}).items()
        for name, item in named.items()
    }


def test_every_object_of_the_release_keeps_its_name(released: Objects, current: Objects) -> None:
    assert set(released) - set(current) == set(of_definitions(released))


def test_definitions_stay_when_helm_takes_them_out_of_the_release(released: Objects) -> None:
    for definition in of_definitions(released).values():
        assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_fields_that_cannot_be_changed_are_the_same(released: Objects, current: Objects) -> None:
    current |= ours()
    before = {key: fixed(item) for key, item in released.items()}
    assert {key: fixed(current[key]) for key in before} == before
    assert sum(bool(each) for each in before.values()) > 8


def test_definitions_keep_their_versions_and_fields(released: Objects) -> None:
    found, now = of_definitions(released), ours()
    assert found.keys() == now.keys()
    for key, before in found.items():
        assert set(fields(before["spec"])) - set(fields(now[key]["spec"])) == set()


def test_definitions_of_the_release_are_known_as_ours(released: Objects) -> None:
    for key, before in of_definitions(released).items():
        found = Definition(before)
        assert Definition(ours()[key]).is_later_text_of(found)


def of_definitions(objects: Objects) -> Objects:
    return {key: item for key, item in objects.items() if key[0] == "CustomResourceDefinition"}


def ours() -> Objects:
    """The definitions that the controller writes."""
    return {("CustomResourceDefinition", own.name): own.document for own in definitions.own()}


def fixed(item: Mapping[str, Any]) -> dict[str, Any]:
    """What the API server refuses to change in an object."""
    spec = item.get("spec", {})
    if item["kind"] in ("DaemonSet", "Deployment"):
        return {"selector": spec["selector"]}
    if item["kind"] == "CustomResourceDefinition":
        stored = [each["name"] for each in spec["versions"] if each["storage"]]
        return {"scope": spec["scope"], "names": spec["names"], "stored": stored}
    return {"roleRef": item["roleRef"]} if "roleRef" in item else {}


def fields(definition: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The path of every field of every served version; what is not in a schema is dropped."""
    for version in definition["versions"]:
        if version["served"]:
            schema = version["schema"]["openAPIV3Schema"]
            yield from ((version["name"], *path) for path in _paths(schema))


def _paths(schema: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, part in schema.get("properties", {}).items():
        yield (name,)
        yield from ((name, *path) for path in _paths(part))
    for part in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(part, dict):
            yield from (("*", *path) for path in _paths(part))
