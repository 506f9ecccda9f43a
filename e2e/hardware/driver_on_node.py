# SPDX-License-Identifier: Apache-2.0
"""Runs the GPU plugin on a machine with real GPUs beside a kube-apiserver; reports what it does.

Discovery, published devices, CDI spec, a container's view of the GPU, health, restarts, and how
long a claim takes. The test harness is the kubelet, as in component tests. Nothing of the hardware
is changed: no MIG mode, no MIG device, no compute mode, no time slice.

    python -m e2e.hardware.driver_on_node --driver-root=/ > report.json

It needs root, for device nodes and mount namespaces, and `nvidia-cdi-hook` in /usr/bin.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nvdra_sim.installation import Roots
from nvdra_testing.control_plane import apiserver
from nvdra_testing.kubelet import kubelet_client
from nvdra_testing.node import plugin
from nvdra_testing.node.plugin import Node
from nvdra_testing.node.rig import Rig, all_cdi_edits, cdi_names

from e2e.hardware import node_files

CLAIMS = 50
HEALTH = "--feature-gates=NVMLDeviceHealthCheck=true"
PARTITIONS = "--feature-gates=NVMLDeviceHealthCheck=true,DynamicMIG=true"

CUDA = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name}: {code}"
call("cuInit", 0)
count, device = ctypes.c_int(), ctypes.c_int()
context, address = ctypes.c_void_p(), ctypes.c_uint64()
call("cuDeviceGetCount", ctypes.byref(count))
call("cuDeviceGet", ctypes.byref(device), 0)
name = ctypes.create_string_buffer(100)
call("cuDeviceGetName", name, 100, device)
call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(1 << 30))
call("cuMemsetD8_v2", address, ctypes.c_ubyte(7), ctypes.c_size_t(1 << 30))
back = (ctypes.c_ubyte * 4)()
call("cuMemcpyDtoH_v2", back, ctypes.c_uint64(address.value + (1 << 30) - 4), ctypes.c_size_t(4))
print(count.value, name.value.decode(), "1 GiB written, reads back", list(back))
"""
"""A workload without libraries of CUDA: a context, memory, a kernel of the driver, a copy."""


async def report(roots: Roots, kubernetes: str = "") -> dict[str, Any]:
    """Everything, with the machine's files and a release of the API server."""
    with (
        TemporaryDirectory(prefix="nvdra-", dir="/dev/shm") as directory,
        ExitStack() as stack,
    ):
        root = Path(directory)
        (root / "api").mkdir()
        running = apiserver.run_apiserver(root / "api", kubernetes=kubernetes)
        server = stack.enter_context(running)
        node = Node("node-1", roots, root / "k", root / "cdi")
        node.kubelet.mkdir()
        plugin.create_node_object(server, node.name)
        async with kubelet_client.run_kubelet(node.kubelet) as kubelet:
            rig = Rig(server, node, kubelet, stack)
            found = await _whole_gpus(rig)
            found["partitions"] = await _partitions(rig)
            return found


async def _whole_gpus(rig: Rig) -> dict[str, Any]:
    started = time.monotonic()
    await rig.start(HEALTH)
    found: dict[str, Any] = {"ready_after_s": _passed(started)}
    found["devices"] = rig.devices()
    found["readyz"] = rig.process.get("/readyz?verbose")[1].splitlines()
    found["status"] = rig.status()
    if not found["devices"]:  # the status says why
        await rig.stop()
        found["log"] = rig.process.log.read_text().splitlines()
        return found
    name = sorted(found["devices"])[0]
    claim = rig.create_claim(name)
    found["first_prepare_ms"], answer = await _prepare(rig, claim)
    (cdi_name,) = cdi_names(answer)
    edits = all_cdi_edits(rig, cdi_name)
    found["cdi"] = edits
    found["wrong_in_cdi"] = list(_wrong_paths(edits))
    found["container"] = _run_container(edits)

    held = rig.server.request("GET", f"{plugin.claims_path(claim.namespace)}/{claim.name}")
    found["claim_status_devices"] = held["status"].get("devices")
    await rig.stop(signal.SIGKILL)
    started = time.monotonic()
    await rig.start(HEALTH)
    found["ready_after_kill_s"] = _passed(started)
    found["repeat_after_kill_ms"], again = await _prepare(rig, claim)
    found["same_answer_after_kill"] = again.SerializeToString() == answer.SerializeToString()
    await rig.dra.unprepare([claim])
    rig.delete_claim(claim)

    prepares, unprepares = [], []
    for _ in range(CLAIMS):
        claim = rig.create_claim(name)
        took, _answer = await _prepare(rig, claim)
        prepares.append(took)
        started = time.monotonic()
        await rig.dra.unprepare([claim])
        unprepares.append((time.monotonic() - started) * 1000)
        rig.delete_claim(claim)
    found["prepare_ms"], found["unprepare_ms"] = _spread(prepares), _spread(unprepares)
    found["resident_mib"] = round(rig.process.resident_mib(), 1)
    calls = [line for line in rig.process.get("/metrics")[1].splitlines() if "nvml" in line]
    found["nvml_metrics"] = [line for line in calls if "bucket" not in line and line[0] != "#"]
    await rig.stop()
    found["log"] = rig.process.log.read_text().splitlines()[:60]
    return found


async def _partitions(rig: Rig) -> dict[str, Any]:
    """What DynamicMIG publishes. Nothing is made."""
    started = time.monotonic()
    await rig.start(PARTITIONS)
    return {
        "ready_after_s": _passed(started),
        "slices": [slice_["spec"] for slice_ in rig.slices()],
        "status": rig.status(),
    }


async def _prepare(rig: Rig, claim: Any) -> tuple[float, Any]:
    started = time.monotonic()
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    passed = (time.monotonic() - started) * 1000
    assert not answer.error, answer.error
    return round(passed, 2), answer


def _wrong_paths(edits: Mapping[str, Any]) -> Iterable[str]:
    """What the runtime could not carry out."""
    for each in edits.get("deviceNodes", ()):
        path = Path(each.get("hostPath", each["path"]))
        if not path.is_char_device():
            yield f"{path} is no device node"
        elif "major" in each:
            number = path.stat().st_rdev
            if (os.major(number), os.minor(number)) != (each["major"], each.get("minor", 0)):
                yield f"{path} has another number than {each}"
    for each in edits.get("mounts", ()):
        if not Path(each["hostPath"]).exists():
            yield f"{each['hostPath']} does not exist"


def _run_container(edits: Mapping[str, Any]) -> dict[str, str]:
    """What a process sees that has only what the spec gives: nvidia-smi, and a CUDA workload.

    The root is the machine's, with an empty /dev and no files of the driver; edits are applied as a
    runtime does. In place of the hooks, ldconfig runs: it makes the links and the cache.
    """
    with TemporaryDirectory(prefix="root-") as directory:
        script = "\n".join(_as_script(Path(directory), edits))
        variables = dict(each.split("=", 1) for each in edits.get("env", ()))
        results = {}
        for name, command in {
            "nvidia-smi -L": ["nvidia-smi", "-L"],
            "cuda": [sys.executable, "-c", CUDA],
        }.items():
            argv = ["unshare", "--mount", "bash", "-eu", "-c", script, "-", *command]
            results[name] = node_files.output(argv, {**os.environ, **variables})
        return results


_FILES_OF_THE_DRIVER = "-name 'nvidia-*' -o -name 'libnvidia-*' -o -name 'libcuda.so*'"

_CONTAINER = f"""
mount --make-rprivate /
mount -t tmpfs none $ROOT
cd $ROOT
mkdir up work merged
mount -t overlay overlay -o lowerdir=/,upperdir=up,workdir=work merged
cd merged
rm -rf usr/local/nvidia lib/firmware/nvidia etc/ld.so.cache
find usr/bin usr/lib usr/lib64 -maxdepth 2 '(' {_FILES_OF_THE_DRIVER} ')' -delete || true
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs none dev
mknod -m 666 dev/null c 1 3
mknod -m 666 dev/zero c 1 5
mknod -m 666 dev/urandom c 1 9
"""
"""A root with the machine's files, without those of the driver, and with an empty /dev."""


def _as_script(root: Path, edits: Mapping[str, Any]) -> Iterable[str]:
    yield f"ROOT={root}"
    yield _CONTAINER
    for each in edits.get("deviceNodes", ()):
        path = Path(each["path"])
        number = Path(each.get("hostPath", path)).stat().st_rdev
        yield f"mkdir -p .{path.parent}"
        yield f"mknod -m 666 .{path} c {os.major(number)} {os.minor(number)}"
    folders = set()
    for each in edits.get("mounts", ()):
        inside, host = Path(each["containerPath"]), Path(each["hostPath"])
        if host.is_dir():
            yield f"mkdir -p .{inside}"
        else:
            yield f"mkdir -p .{inside.parent}; touch .{inside}"
        yield f"mount --bind {host} .{inside}"
        if ".so" in inside.name:
            folders.add(str(inside.parent))
    for folder in sorted(folders):
        yield f"echo {folder} >> etc/ld.so.conf.d/00-container.conf"
    yield "chroot . ldconfig 2> /dev/null"
    yield 'exec chroot . env -u LD_LIBRARY_PATH "$@"'


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "p50": round(statistics.median(ordered), 2),
        "p90": round(ordered[len(ordered) * 9 // 10], 2),
        "max": round(ordered[-1], 2),
    }


def _passed(started: float) -> float:
    return round(time.monotonic() - started, 2)


def main() -> None:
    """Print the report as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--driver-root", type=Path, default=Path("/"), help="where the driver's files are (/)"
    )
    parser.add_argument("--kube", default="", help="the release of the API server, such as 1.34")
    arguments = parser.parse_args()
    roots = Roots(arguments.driver_root, Path("/proc"), Path("/sys"), Path("/dev"))
    json.dump(asyncio.run(report(roots, arguments.kube)), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
