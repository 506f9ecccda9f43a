"""The errors of nvdra-cdi. All derive from `CDIError`; each says what is wrong with which value.

CDIError
├── NameError_              a vendor, class or device name breaks its rule
├── VersionError            `cdiVersion` is unknown or too low for what the document uses
├── DocumentError           a document is not as it should be; carries every problem
│   ├── CodecError          bytes that are no CDI document
│   └── ValidationError     a document that breaks the rules
├── FileError               a spec file or directory could not be read, written or removed
├── ConflictError           two spec files of one priority define the same device
├── UnresolvedDevicesError  nobody defines these devices
├── InjectionError          a container's configuration cannot take the edits
├── AnnotationError         an annotation that asks for devices is malformed
├── TransformError          a document cannot be rewritten as asked
└── DiscoveryError          the driver or a device node is not where it has to be
"""

from dataclasses import dataclass

_LONGEST_MESSAGE = 500  # characters: an offending value may be megabytes long


class CDIError(Exception):
    """The family."""


class NameError_(CDIError):
    """A part of a qualified device name breaks its rule."""


class VersionError(CDIError):
    """A document's version is unknown, or lower than its content needs."""


class FileError(CDIError):
    """The file system refused to read, write or remove a spec."""


class ConflictError(CDIError):
    """Two spec files of equal priority define one device; which is meant, nobody can tell."""


class UnresolvedDevicesError(CDIError):
    """No spec defines these devices, or several do.

    Attributes:
        names: All of them, in the order they were asked for.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        super().__init__(f"unresolvable CDI devices {', '.join(names)}")


class InjectionError(CDIError):
    """Edits cannot be applied to this container's configuration on this host."""


class AnnotationError(CDIError):
    """An annotation that asks for devices breaks its rule."""


class TransformError(CDIError):
    """A document cannot be rewritten as asked."""


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
        line: The line of the document, from 1; 0 where there is no text.
        remedy: What to do about it.
    """

    path: str
    message: str
    device: str = ""
    is_extra: bool = False
    line: int = 0
    remedy: str = ""

    def __str__(self) -> str:
        where = f'{self.path} (device "{self.device}")' if self.device else self.path
        line = f" (line {self.line})" if self.line else ""
        return one_line(f"{where}: {self.message}" if where else self.message) + line


class DocumentError(CDIError):
    """A document is not as it should be.

    Attributes:
        problems: All of them, in document order.
        source: The file the document came from or goes to, empty when there is none.
    """

    def __init__(self, problems: tuple[Problem, ...], source: str = "") -> None:
        self.problems = problems
        self.source = source
        super().__init__((f"{source}: " if source else "") + "; ".join(map(str, problems)))


class CodecError(DocumentError):
    """Bytes that do not decode to a CDI document."""


class ValidationError(DocumentError):
    """A document breaks at least one rule."""


def one_line(text: str) -> str:
    """Text for a message: short, and no value can break out of its line."""
    if len(text) > _LONGEST_MESSAGE:
        half = _LONGEST_MESSAGE // 2
        text = f"{text[:half]} … {text[-half:]}"
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
