# SPDX-License-Identifier: Apache-2.0
"""Mutants of nvdra-cdi: files, the cache, injection, versions."""

from typing import Final

from tests.mutants.mutant import Mutant

_CDI: Final = "packages/nvdra-cdi/src/nvdra_cdi"
_UNIT: Final = "packages/nvdra-cdi/tests/unit"
_SYNCED: Final = "packages/nvdra-api/tests/component/test_synced_files.py"

MUTANTS: Final = (
    Mutant(
        "cdi: the plain directories of libraries are always searched",
        "packages/nvdra-cdi/src/nvdra_cdi/nvidia/driver_root.py",
        "    if given or find_libraries(root, _ANY_DRIVER):\n",
        "    if given:\n",
        "32-bit libraries take the place of the driver's.",
        component=(
            "packages/nvdra-cdi/tests/component/test_nvidia_ctk.py::"
            "test_libraries_without_a_directory_per_architecture_are_found",
        ),
    ),
    Mutant(
        "cdi files: a spec is not synced",
        f"{_CDI}/files.py",
        "            os.fsync(file.fileno())\n",
        "",
        "After a power failure a spec is empty, and pods do not start.",
        component=(_SYNCED,),
    ),
    Mutant(
        "cdi files: the directory of a written spec is not synced",
        f"{_CDI}/files.py",
        "        raise\n    _sync_directory(path.parent)\n",
        "        raise\n",
        "After a power failure a spec is gone, and pods do not start.",
        component=(_SYNCED,),
    ),
    Mutant(
        "cdi files: the directory of a removed spec is not synced",
        f"{_CDI}/files.py",
        "            _sync_directory(path.parent)\n",
        "            pass\n",
        "After a power failure a spec that nobody needs is back.",
        component=(_SYNCED,),
    ),
    Mutant(
        "cdi files: a spec is written in place",
        f"{_CDI}/files.py",
        "            temporary.replace(path)\n        else:",
        "            path.write_bytes(data)\n            temporary.unlink()\n        else:",
        "A runtime reads half a spec.",
        (f"{_UNIT}/test_files.py",),
    ),
    Mutant(
        "cdi files: only root may read a spec",
        f"{_CDI}/files.py",
        "_MODE = 0o644",
        "_MODE = 0o600",
        "A runtime of another user finds no device.",
        (f"{_UNIT}/test_files.py",),
    ),
    Mutant(
        "cdi cache: a file that was changed is not read again",
        f"{_CDI}/cache.py",
        "            if file is None or file.stamp is None or file.stamp != stamp:",
        "            if file is None:",
        "A container gets what a device was before.",
        (f"{_UNIT}/test_cache.py",),
    ),
    Mutant(
        "cdi cache: a spec's common edits come with each device",
        f"{_CDI}/cache.py",
        "                begun.add(device.spec.path)\n",
        "",
        "Mounts and hooks are applied several times.",
        (f"{_UNIT}/test_cache.py",),
    ),
    Mutant(
        "cdi index: the directory of the lowest priority wins",
        f"{_CDI}/index.py",
        "        highest = by_priority[max(by_priority)]",
        "        highest = by_priority[min(by_priority)]",
        "A generated spec does not replace the one in /etc/cdi.",
        (f"{_UNIT}/test_cache.py",),
    ),
    Mutant(
        "cdi index: of two definitions the first wins",
        f"{_CDI}/index.py",
        "        if len(highest) == 1:",
        "        if highest:",
        "Which of two devices a container gets depends on the names of files.",
        (f"{_UNIT}/test_cache.py",),
    ),
    Mutant(
        "cdi version: additional groups need no newer version",
        f"{_CDI}/version.py",
        "    return edits.intel_rdt is not None or bool(edits.additional_gids)",
        "    return edits.intel_rdt is not None",
        "Old runtimes leave out the groups, and the container cannot open the GPU.",
        (f"{_UNIT}/test_version.py",),
    ),
    Mutant(
        "cdi version: a version that is too low passes",
        f"{_CDI}/version.py",
        "    if _rank(version) < _rank(minimum):",
        "    if False:",
        "A runtime refuses or misreads a spec that we call valid.",
        (f"{_UNIT}/test_version.py",),
    ),
    Mutant(
        "cdi inject: a node of another type passes",
        f"{_CDI}/oci.py",
        '    if node.type not in ("", kind):',
        "    if False:",
        "A container gets a block device where a character device was meant.",
        (f"{_UNIT}/test_oci.py",),
    ),
    Mutant(
        "cdi inject: the permissions of the host are not taken",
        f"{_CDI}/oci.py",
        "    mode = stat.S_IMODE(entry.mode) if node.file_mode is None else node.file_mode",
        "    mode = node.file_mode",
        "Users other than root cannot open the GPU.",
        (f"{_UNIT}/test_oci.py",),
    ),
    Mutant(
        "cdi annotations: a long key passes",
        f"{_CDI}/annotations.py",
        "    if len(name) > _MAX_NAME_CHARACTERS:",
        "    if False:",
        "The API server rejects the pod.",
        (f"{_UNIT}/test_annotations.py",),
    ),
    Mutant(
        "cdi paths: a link may leave the driver root",
        f"{_CDI}/rooted_files.py",
        "                if not reached and self._root:\n                    return None\n",
        "",
        "Files of the host are mounted as the driver's.",
        (f"{_UNIT}/test_rooted_files.py",),
    ),
    Mutant(
        "cdi paths: links in a circle are followed for ever",
        f"{_CDI}/rooted_files.py",
        "            if links > _MAX_LINKS:",
        "            if False:",
        "A driver root with a circle of links hangs the plugin.",
        (f"{_UNIT}/test_rooted_files.py",),
    ),
)
