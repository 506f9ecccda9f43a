"""The errors of nvdra-cdi. All derive from `CDIError`; each says what is wrong with which value.

CDIError
├── NameError_        a vendor, class or device name breaks its rule
├── VersionError      `cdiVersion` is unknown or too low for what the document uses
├── ValidationError   a document breaks the rules; carries every problem
├── CodecError        bytes that are no CDI document
├── FileError         a spec file could not be read, written or removed
└── DiscoveryError    the driver or a device node is not where it has to be
"""

from dataclasses import dataclass


class CDIError(Exception):
    """The family."""


class NameError_(CDIError):
    """A part of a qualified device name breaks its rule."""


class VersionError(CDIError):
    """A document's version is unknown, or lower than its content needs."""


class CodecError(CDIError):
    """Bytes that do not decode to a CDI document."""


class FileError(CDIError):
    """The file system refused to read, write or remove a spec."""


class DiscoveryError(CDIError):
    """What generation cannot do without was not found on this machine."""


@dataclass(frozen=True)
class Problem:
    """One broken rule.

    Attributes:
        path: Where, in the document's field names: `devices[0].containerEdits.env[2]`.
        message: The rule and the offending value.
        device: The name of the device the path lies in, empty outside devices.
        is_extra: The CDI standard or its reference library tolerates this; we refuse to write it.
    """

    path: str
    message: str
    device: str = ""
    is_extra: bool = False

    def __str__(self) -> str:
        where = f'{self.path} (device "{self.device}")' if self.device else self.path
        return f"{where}: {self.message}"


class ValidationError(CDIError):
    """A document breaks at least one rule.

    Attributes:
        problems: All of them, in document order.
        source: The file the document came from or goes to, empty when there is none.
    """

    def __init__(self, problems: tuple[Problem, ...], source: str = "") -> None:
        self.problems = problems
        self.source = source
        super().__init__((f"{source}: " if source else "") + "; ".join(map(str, problems)))
