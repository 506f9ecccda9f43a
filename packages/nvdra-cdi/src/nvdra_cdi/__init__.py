# SPDX-License-Identifier: Apache-2.0
"""Container Device Interface specs: model, validation, files and NVIDIA generation.

`import nvdra_cdi` offers the types and the modules whose functions work on them, for example
`nvdra_cdi.files.write(nvdra_cdi.Spec(…), path)`. Only `nvdra_cdi.nvidia`, which generates specs of
NVIDIA devices, is imported on its own, because it needs pydantic.
"""

from nvdra_cdi import annotations, codec, files, names, oci, transforms, validation, version
from nvdra_cdi.__about__ import __version__
from nvdra_cdi.cache import DEFAULT_DIRECTORIES, Cache
from nvdra_cdi.errors import (
    AnnotationError,
    CDIError,
    CodecError,
    ConflictError,
    DiscoveryError,
    DocumentError,
    FileError,
    InjectionError,
    InvalidNameError,
    MissingCapabilitiesError,
    Problem,
    TransformError,
    UnresolvedDevicesError,
    ValidationError,
    VersionError,
)
from nvdra_cdi.index import CachedDevice, LoadedSpec
from nvdra_cdi.model import (
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
)

__all__ = [
    "DEFAULT_DIRECTORIES",
    "AnnotationError",
    "CDIError",
    "Cache",
    "CachedDevice",
    "CodecError",
    "ConflictError",
    "ContainerEdits",
    "Device",
    "DeviceNode",
    "DiscoveryError",
    "DocumentError",
    "FileError",
    "Hook",
    "InjectionError",
    "IntelRdt",
    "InvalidNameError",
    "LoadedSpec",
    "MissingCapabilitiesError",
    "Mount",
    "NetDevice",
    "Problem",
    "Spec",
    "TransformError",
    "UnresolvedDevicesError",
    "ValidationError",
    "VersionError",
    "__version__",
    "annotations",
    "codec",
    "files",
    "names",
    "oci",
    "transforms",
    "validation",
    "version",
]
