# SPDX-License-Identifier: Apache-2.0
"""What we write, the older library inside of today's runtimes reads, with the same meaning.

It decodes YAML 1.1, where `n`, `0:1` and others are no texts unless they are quoted.
"""

import json
from dataclasses import replace

import pytest
from cdi_corpus.comparison import Compared
from cdi_corpus.oracle import Oracle
from nvdra_cdi import codec, version
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, IntelRdt, Spec

pytestmark = pytest.mark.timeout(300)  # the first test builds the oracle and asks for it all

NEWEST = version.KNOWN_VERSIONS.index("1.0.0")  # that it knows
WORDS = (
    *("y", "n", "yes", "No", "ON", "off", "true", "Null", "~", "", "=", "<<", "-", "2001-01-01"),
    *("0", "1.5", "0x1f", "0o7", "0b1", "017", "1_000", "1e3", ".5", ".inf", "0:1", "12:30:45"),
)


@pytest.fixture(scope="module")
def written(compared: list[Compared]) -> list[Spec]:
    """The documents of the corpus that we write, in versions that it knows."""
    specs = [
        replace(each.spec, version=version.minimum_required(each.spec))
        for each in compared
        if each.spec is not None and not each.unwritable and each.document.kind != "mixture"
    ]
    return [spec for spec in specs if version.KNOWN_VERSIONS.index(spec.version) <= NEWEST]


def test_every_document_that_we_write_is_read(
    runtimes_library: Oracle, written: list[Spec]
) -> None:
    specs = [spec for spec in written if not is_newer(spec)]
    meanings = [{"containerEdits": {}} | json.loads(codec.dumps(spec, "json")) for spec in specs]
    answers = runtimes_library.specs(codec.dumps(spec) for spec in specs)
    assert [answer["error"] for answer in answers if "error" in answer] == []
    assert [answer["spec"] for answer in answers] == meanings
    assert len(specs) > 500


@pytest.mark.parametrize(
    ("edits", "error"),
    [
        (
            ContainerEdits(device_nodes=(DeviceNode("/a", permissions="none"),)),
            'permissions "none"',
        ),
        (ContainerEdits(intel_rdt=IntelRdt(clos_id="/")), "ClosID"),
    ],
    ids=["permissions none", "the root class of intelRdt"],
)
def test_a_value_that_it_does_not_know_yet_is_refused(
    runtimes_library: Oracle, edits: ContainerEdits, error: str
) -> None:
    spec = Spec("vendor.com/class", (Device("a", edits),), version="0.7.0")
    (answer,) = runtimes_library.specs([codec.dumps(spec)])
    assert answer["error"].endswith(f"invalid {error}")


def test_texts_that_yaml_1_1_takes_for_something_else_stay_texts(runtimes_library: Oracle) -> None:
    texts = {f"k{index}": word for index, word in enumerate(WORDS)}
    device = Device("a", ContainerEdits(env=("A=b",)))
    spec = Spec("vendor.com/class", (device,), annotations=texts, version="0.6.0")
    (answer,) = runtimes_library.specs([codec.dumps(spec)])
    assert answer["spec"]["annotations"] == texts


def is_newer(spec: Spec) -> bool:
    """Whether it has a value that the library of that version did not know yet."""
    edits = [spec.container_edits, *(device.container_edits for device in spec.devices)]
    return any(
        any(node.permissions == "none" for node in each.device_nodes)
        or (each.intel_rdt is not None and each.intel_rdt.clos_id == "/")
        for each in edits
    )
