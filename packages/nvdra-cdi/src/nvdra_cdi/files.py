"""Spec files: their names, atomic writes, reads and removal (spec/cdi.md §6).

A runtime that scans the directory at any moment, or after a power cut, sees the old document or the
new one, complete and readable, never a part.
"""

import os
import secrets
import stat
from pathlib import Path

from nvdra_cdi import codec, diagnosis, validate, version
from nvdra_cdi.composing import MAX_BYTES
from nvdra_cdi.errors import CodecError, FileError, ValidationError
from nvdra_cdi.model import Spec

_MODE = 0o644  # runtimes may read as another user
_DIRECTORY_MODE = 0o755
_MAX_NAME_BYTES = 255
_SUFFIXES = (".yaml", ".json")
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # nothing that is there blocks us
_TEMPORARY = "spec.{}.tmp"  # an extension that no reader of the directory looks at
_OWNER_CHARACTERS = 48  # of the spec's name in its temporary file's; it must stay a legal name


def spec_name(vendor: str, class_: str) -> str:
    """The file name of a vendor's and class's spec."""
    return f"{vendor}-{class_}.yaml"


def transient_name(vendor: str, class_: str, id_: str) -> str:
    """The file name of a spec that lives as long as some other object.

    Args:
        vendor: `k8s.gpu.nvidia.com`, for instance.
        class_: `claim`, for instance.
        id_: The object's id, a claim's UID for instance; a slash becomes `_`.

    Raises:
        FileError: The id cannot be part of a file name.
    """
    name = f"{vendor}-{class_}_{id_.replace('/', '_')}.yaml"
    if id_ in ("", ".", "..") or "\0" in id_ or len(name.encode()) > _MAX_NAME_BYTES:
        raise FileError(f"{id_!r} cannot be part of a file name")
    return name


def is_spec_name(name: str) -> bool:
    """Whether readers of a spec directory look at a file of this name."""
    return name.endswith(_SUFFIXES)


def with_extension(name: str) -> str:
    """The name, with `.yaml` behind it unless readers look at it already."""
    return name if is_spec_name(name) else f"{name}.yaml"


def write(spec: Spec, path: Path | str, *, overwrite: bool = True) -> None:
    """Validate a spec and put it at `path`: one step, synced, mode 0644.

    `cdiVersion` becomes the lowest version that the content needs, so that old runtimes can read
    it. A missing directory is made (0755). The extension, `.yaml` or `.json`, decides the format.

    Args:
        spec: The document.
        path: The file.
        overwrite: Replace what is there; else that something is there is an error.

    Raises:
        ValidationError: The spec breaks a rule; nothing was written.
        FileError: The system refused, or the extension is another; what was there is untouched.
    """
    path = Path(path)
    if not is_spec_name(path.name):
        raise FileError(f"{path}: a spec file ends in .yaml or .json, or no runtime reads it")
    spec = version.with_minimum(spec)
    validate.check(spec, source=str(path))
    data = codec.dumps(spec, "json" if path.name.endswith(".json") else "yaml")
    try:
        path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        _put(path, data, overwrite=overwrite)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from error


def read(path: Path | str) -> Spec:
    """The spec in a file, checked against the standard's rules but not our extra ones.

    Raises:
        FileError: It cannot be read, or is no regular file.
        CodecError: It is no CDI document.
        ValidationError: It breaks a rule of the standard.
    """
    data = contents(path)
    try:
        spec = codec.loads(data)
        validate.check(spec, strict=False)
    except (CodecError, ValidationError) as error:
        raise type(error)(diagnosis.placed(error.problems, data), str(path)) from error
    return spec


def contents(path: Path | str) -> bytes:
    """The bytes of a file, one more than a document may have at most.

    Neither a FIFO nor a device is opened: the one would block, the other may do something.

    Raises:
        FileError: It cannot be read, or is no regular file.
    """
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise FileError(f"cannot read {path}: it is no regular file")
        with os.fdopen(os.open(path, _READ), "rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise FileError(f"cannot read {str(path)!r}: {error}") from error


def remove(path: Path | str) -> None:
    """Remove a spec file; that it is not there is fine.

    Raises:
        FileError: The system refused.
    """
    path = Path(path)
    try:
        path.unlink(missing_ok=True)
        if path.parent.is_dir():
            _sync_directory(path.parent)
    except OSError as error:
        raise FileError(f"cannot remove {path}: {error.strerror}") from error


def remove_abandoned(directory: Path | str, before: float, owner: str = "") -> None:
    """Remove the temporary files of writers that died.

    Args:
        directory: Where specs are written; it may be missing.
        before: Only files last changed before this moment, in seconds since the epoch.
        owner: Only files of specs whose names begin so; `k8s.gpu.nvidia.com-device`, for instance.

    Raises:
        FileError: The system refused.
    """
    try:
        for path in Path(directory).glob(_TEMPORARY.format(f"{owner[:_OWNER_CHARACTERS]}*")):
            if path.lstat().st_mtime < before:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"cannot clean up {directory}: {error.strerror}") from error


def rewrite(path: Path | str, data: bytes) -> None:
    """Replace what a file holds, in one step; its mode and its owner stay.

    Raises:
        FileError: It is not there, or the system refused.
    """
    path = Path(path).resolve()
    try:
        _put(path, data, overwrite=True, like=path.stat())
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from error


def _put(path: Path, data: bytes, *, overwrite: bool, like: os.stat_result | None = None) -> None:
    whose = f"{path.stem[:_OWNER_CHARACTERS]}.{secrets.token_hex(8)}"
    temporary = path.parent / _TEMPORARY.format(whose)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if like is not None:
                os.fchown(file.fileno(), like.st_uid, like.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode) if like is not None else _MODE)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)
            temporary.unlink()
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
