# SPDX-License-Identifier: Apache-2.0
"""Opaque parameters that the API server stores and that must not harm more than their own claim.

Each is within 10 KiB and valid JSON for Go. Numbers beyond the range of floats are not here: the
API server does not store them.
"""

from collections.abc import Mapping
from typing import Final

_HEAD: Final = '"apiVersion":"resource.nvidia.com/v1beta1"'


def _mps(limit: str) -> str:
    settings = f'{{"strategy":"MPS","mpsConfig":{{"defaultPinnedDeviceMemoryLimit":{limit}}}}}'
    return f'{{{_HEAD},"kind":"GpuConfig","sharing":{settings}}}'


def _unknown(value: str) -> str:
    return f'{{{_HEAD},"kind":"GpuConfig","a":{value}}}'


_TOO_DEEP: Final = "objects and arrays are nested more than 200 levels deep"
_LIMIT: Final = "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"

PARAMETERS: Final[Mapping[str, tuple[str, str]]] = {
    "exponent": (_mps('"1e999999999"'), f"{_LIMIT}: quantities must have an exponent"),
    "long quantity": (_mps(f'"{"1" * 9000}x"'), f"{_LIMIT}: quantities must have at most 256"),
    "surrogate": (f'{{{_HEAD},"kind":"\\ud800"}}', "kind: the text has a lone surrogate"),
    "surrogate in a name": (
        f'{{{_HEAD},"kind":"GpuConfig","\\udfff":1}}',
        r"\udfff: the text has a lone surrogate",
    ),
    "brackets": (_unknown("[" * 4000 + "]" * 4000), _TOO_DEEP),
    "objects": (_unknown('{"a":' * 1600 + "1" + "}" * 1600), _TOO_DEEP),
    "fields": (
        _unknown(",".join(["1", *(f'"k{number}":1' for number in range(900))])),
        'unknown field "k0"',
    ),
}
"""The parameters by what is extreme, each with what the answer says of it."""
