# SPDX-License-Identifier: Apache-2.0
"""Rules about versions, docs/reference/cdi.md §2."""

from cdi_corpus import documents
from cdi_corpus.documents import Tree
from cdi_corpus.generators import Generators, Random
from cdi_corpus.table import VERSIONS

made = Generators()


@made.of("version known")
def _version_known(rng: Random, tree: Tree, keeps: bool) -> None:
    good = (*VERSIONS, *(f"v{version}" for version in VERSIONS))
    bad = (
        "0.9.0",
        "1.1.1",
        "1.0",
        "1",
        "",
        "vv1.0.0",
        "V1.0.0",
        "1.1.0 ",
        " 1.1.0",
        "01.1.0",
        "2.0.0",
        "v",
        "1.1.0-rc1",
    )
    tree["cdiVersion"] = rng.choice(good if keeps else bad)
    if not keeps and rng.random() < 0.1:
        del tree["cdiVersion"]


@made.of("at least 0.3.0")
def _at_least(rng: Random, tree: Tree, keeps: bool) -> None:
    tree["cdiVersion"] = rng.choice(VERSIONS if keeps else ("0.1.0", "0.2.0", "v0.1.0", "v0.2.0"))


@made.needs("1.1.0", "version for schemata")
def _schemata(rng: Random, tree: Tree) -> None:
    schemata = rng.choice(([], ["L3:0=f"], ["L3:0=f", "MB:0=100"]))
    documents.any_edits(rng, tree)["intelRdt"] = {"schemata": schemata}


@made.needs("1.1.0", "version for enableMonitoring")
def _monitoring(rng: Random, tree: Tree) -> None:
    documents.any_edits(rng, tree)["intelRdt"] = {"enableMonitoring": True}


@made.needs("1.1.0", "version for netDevices")
def _net_devices(rng: Random, tree: Tree) -> None:
    documents.any_edits(rng, tree)["netDevices"] = [documents.net_device(rng)]


@made.needs("0.7.0", "version for intelRdt")
def _intel_rdt(rng: Random, tree: Tree) -> None:
    content = rng.choice(({}, {"closID": "x"}, {"enableMonitoring": False}, {"schemata": None}))
    documents.any_edits(rng, tree)["intelRdt"] = dict(content)


@made.needs("0.7.0", "version for additionalGids")
def _gids(rng: Random, tree: Tree) -> None:
    documents.any_edits(rng, tree)["additionalGids"] = rng.choice(([0], [44], [0, 44]))


@made.needs("0.6.0", "version for spec annotations")
def _spec_annotated(rng: Random, tree: Tree) -> None:
    tree["annotations"] = documents.annotations(rng)


@made.needs("0.6.0", "version for device annotations")
def _device_annotated(rng: Random, tree: Tree) -> None:
    documents.any_device(rng, tree)["annotations"] = documents.annotations(rng)


@made.needs("0.6.0", "version for a dotted class")
def _dotted_class(rng: Random, tree: Tree) -> None:
    tree["kind"] = rng.choice(("v/a.b", "nvidia.com/imex.channel", "v.w/a.b.c", "v/a..b"))


@made.needs("0.5.0", "version for a leading digit")
def _leading_digit(rng: Random, tree: Tree) -> None:
    documents.any_device(rng, tree)["name"] = rng.choice("0123456789") + rng.choice(
        ("", ":1", "a", "-x")
    )


@made.needs("0.5.0", "version for hostPath")
def _host_path(rng: Random, tree: Tree) -> None:
    documents.any_object(rng, tree, "DeviceNode")["hostPath"] = documents.path(rng)


@made.needs("0.4.0", "version for mount type")
def _mount_type(rng: Random, tree: Tree) -> None:
    documents.any_object(rng, tree, "Mount")["type"] = rng.choice(("bind", "tmpfs", "none", "x"))
