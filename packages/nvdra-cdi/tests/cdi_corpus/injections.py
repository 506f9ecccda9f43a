# SPDX-License-Identifier: Apache-2.0
"""Caches read and devices injected by both sides: the same directories, containers and names."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvdra_cdi import oci
from nvdra_cdi.cache import Cache
from nvdra_cdi.errors import InjectionError, UnresolvedDevicesError

from cdi_corpus import containers, differences
from cdi_corpus.containers import Directories
from cdi_corpus.differences import CACHE, Resolved
from cdi_corpus.oracle import Oracle
from cdi_corpus.tally import Tally

_SCENARIOS = 60
_CONTAINERS = 10
_UNKNOWN = ("v.com/a=nobody", "/dev/null", "no name", "")


def compared(seed: str, top: Path, oracle: Oracle) -> Tally:
    """Ask both sides for everything; files go below `top`."""
    tally = Tally()
    nodes = containers.host(top / "host")
    for index in range(_SCENARIOS):
        rng = random.Random(f"{seed}/directories/{index}")
        directories = containers.directories(rng, top / str(index), nodes)
        cache = Cache(directories.paths, auto_refresh=False)
        tally.asked["spec directories read"] += 1
        disputed = _compare_caches(directories, cache, oracle, tally)
        configurations = containers.configurations(rng, _CONTAINERS)
        if index % 20 == 0:
            configurations += containers.every_section()
        for configuration in configurations:
            names = list(_asked(rng, directories, cache.list_devices()))
            if disputed.isdisjoint(names):
                _compare_injections(configuration, directories, cache, names, oracle, tally)
    return tally


def _compare_caches(
    directories: Directories, cache: Cache, oracle: Oracle, tally: Tally
) -> set[str]:
    """Compare the queries; returns the names that only we resolve, as is intended."""
    theirs = oracle.ask("cache", dirs=directories.paths)
    ours = {name: _path(cache, name) for name in cache.list_devices()}
    disputed: set[str] = set()
    for name in ours.keys() - theirs["devices"].keys():
        folder = str(Path(ours[name]).parent)
        resolved = Resolved(directories.definitions[name], directories.paths.index(folder))
        explained = differences.explaining(CACHE, resolved)
        tally.explained.update(explained)
        if explained:
            disputed.add(name)
    agreed = {name: path for name, path in ours.items() if name not in disputed}
    errors = {path: len(found) for path, found in cache.get_errors().items()}
    for what, mine, other in (
        ("devices", agreed, theirs["devices"]),
        ("errors", errors, theirs["errors"]),
        ("vendors", cache.list_vendors(), theirs["vendors"] or []),
        ("classes", cache.list_classes(), theirs["classes"] or []),
    ):
        if mine != other:
            tally.unexplained.append(f"{directories.paths}: {what}: {mine} is not {other}")
    return disputed


def _path(cache: Cache, name: str) -> str:
    device = cache.get_device(name)
    assert device is not None
    return device.spec.path


def _asked(rng: random.Random, directories: Directories, known: list[str]) -> Iterator[str]:
    defined = (*directories.definitions, *_UNKNOWN)
    for _ in range(rng.randint(0, 4)):
        yield rng.choice(known if known and rng.random() < 0.96 else defined)


def _compare_injections(
    configuration: dict[str, Any],
    directories: Directories,
    cache: Cache,
    names: list[str],
    oracle: Oracle,
    tally: Tally,
) -> None:
    answer = oracle.ask("inject", dirs=directories.paths, oci=configuration, devices=names)
    theirs: tuple[str, Any]
    if answer["unresolved"]:
        theirs = "unresolved", answer["unresolved"]
    else:
        theirs = ("refused", None) if "error" in answer else ("done", answer["oci"])
    ours = _injected(configuration, cache, names, oracle)
    tally.asked[f"injections {ours[0]}"] += 1
    if ours != theirs:
        tally.unexplained.append(f"{names} into {configuration}: {ours} is not {theirs}")


def _injected(
    configuration: dict[str, Any], cache: Cache, names: list[str], oracle: Oracle
) -> tuple[str, Any]:
    """How it ended, and the container as the runtime's structures hold it."""
    try:
        result = oci.inject(configuration, cache, names)
    except UnresolvedDevicesError as error:
        return "unresolved", list(error.names)
    except InjectionError:
        return "refused", None
    normal = oracle.ask("oci", oci=result)
    return ("done", normal["oci"]) if "error" not in normal else ("no OCI spec", normal["error"])
