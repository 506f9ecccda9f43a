# SPDX-License-Identifier: Apache-2.0
"""The hardware data of this package: GPU models, MIG tables and node profiles.

This module reads the YAML files in `models/` and `profiles/`. `node_config` combines them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import Field, PositiveInt

from nvdra_sim.configuration.file_schema import FileModel, GpuModel, ProfileFile
from nvdra_sim.description import MigProfile, MigTable

GRAPHICS = 2  # NVML_GPU_INSTANCE_PROFILE_CAPS_GRAPHICS


class MigShapeRow(FileModel):
    enum: int
    id: int
    slices: PositiveInt
    max: PositiveInt
    size: PositiveInt
    starts: tuple[int, ...]
    graphics: bool = False


class MigShape(FileModel):
    compute_slices: PositiveInt
    memory_slices: PositiveInt
    rows: dict[str, MigShapeRow]


class MigTableRow(FileModel):
    name: str
    memory_mib: PositiveInt
    engines: tuple[int, int, int, int, int, int]


class MigTableEntry(FileModel):
    shape: str
    rows: dict[str, MigTableRow]


class MigFile(FileModel):
    shapes: dict[str, MigShape]
    tables: dict[str, MigTableEntry] = Field(min_length=1)


def profile_names() -> tuple[str, ...]:
    """The names of all node profiles, sorted."""
    names = (entry.name for entry in (files("nvdra_sim") / "profiles").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def profile(name: str) -> ProfileFile:
    """A node profile, merged with the profile it extends. Raises KeyError for an unknown name."""
    if name not in profile_names():
        raise KeyError(name)
    loaded = ProfileFile.model_validate(_read(f"profiles/{name}.yaml"))
    if loaded.extends is None:
        return loaded
    base = profile(loaded.extends)
    gpus = base.gpus
    if loaded.minors is not None:
        gpus = tuple(
            gpu.model_copy(update={"minor": minor})
            for gpu, minor in zip(gpus, loaded.minors, strict=True)
        )
    return base.model_copy(update={"gpus": gpus})


@cache
def gpu_models() -> Mapping[str, GpuModel]:
    """All GPU models by key."""
    rows = _read("models/gpus.yaml")
    return MappingProxyType({key: GpuModel.model_validate(row) for key, row in rows.items()})


@cache
def mig_tables() -> Mapping[str, MigTable]:
    """All MIG tables by key. Profiles are in the order of their enum."""
    file = MigFile.model_validate(_read("models/mig.yaml"))
    tables = {key: _mig_table(entry, file.shapes) for key, entry in file.tables.items()}
    return MappingProxyType(tables)


def _mig_table(entry: MigTableEntry, shapes: Mapping[str, MigShape]) -> MigTable:
    shape = shapes[entry.shape]
    profiles = [_mig_profile(shape.rows[key], row) for key, row in entry.rows.items()]
    return MigTable(
        compute_slices=shape.compute_slices,
        memory_slices=shape.memory_slices,
        profiles=tuple(sorted(profiles, key=lambda profile: profile.enum)),
    )


def _mig_profile(shape: MigShapeRow, row: MigTableRow) -> MigProfile:
    sms, copy, decode, encode, jpeg, ofa = row.engines
    return MigProfile(
        name=row.name,
        enum=shape.enum,
        id=shape.id,
        slices=shape.slices,
        max_instances=shape.max,
        memory_mib=row.memory_mib,
        sms=sms,
        copy_engines=copy,
        decoders=decode,
        encoders=encode,
        jpeg_engines=jpeg,
        ofa_engines=ofa,
        placement_size=shape.size,
        placement_starts=shape.starts,
        capabilities=GRAPHICS if shape.graphics else 0,
    )


def _read(path: str) -> dict[str, Any]:
    text = files("nvdra_sim").joinpath(path).read_text(encoding="utf-8")
    loaded = yaml.load(text, yaml.CSafeLoader)  # libyaml: ten times as fast
    assert isinstance(loaded, dict), path
    return loaded
