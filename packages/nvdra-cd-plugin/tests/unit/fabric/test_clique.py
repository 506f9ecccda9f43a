# SPDX-License-Identifier: Apache-2.0
"""The node's clique, by what its GPUs report."""

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import GpuUUID
from nvdra_cd_plugin.fabric import clique as fabric
from nvdra_cd_plugin.fabric.clique import GpuFabricInfo, GpuFabricState

RACK = UUID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5")
OTHER = UUID("6f1c7a52-0d3e-5b8a-9c41-27e5a0d1b672")
NOBODY = UUID(int=0)


def gpu(
    state: int = GpuFabricState.COMPLETED,
    status: int = fabric.SUCCESS,
    cluster: UUID = RACK,
    clique: int = 2,
    name: str = "GPU-a",
) -> GpuFabricInfo:
    return GpuFabricInfo(GpuUUID(name), state, status, cluster, clique)


def test_the_gpus_of_one_rack_give_its_clique() -> None:
    assert fabric.clique_of([gpu(), gpu(), gpu()], is_strict=True) == f"{RACK}.2"


@pytest.mark.parametrize(
    "seen",
    [
        [],
        [gpu(GpuFabricState.NOT_SUPPORTED, cluster=NOBODY)],
        [gpu(cluster=NOBODY, clique=0)] * 8,
    ],
    ids=["no GPU", "no NVLink", "NVLink inside the node"],
)
def test_without_a_fabric_that_spans_nodes_there_is_no_clique(
    seen: Sequence[GpuFabricInfo],
) -> None:
    assert fabric.clique_of(seen, is_strict=True) == ""
    assert fabric.clique_of(seen, is_strict=False) == ""


@pytest.mark.parametrize("state", [GpuFabricState.NOT_STARTED, GpuFabricState.IN_PROGRESS, 9])
def test_a_gpu_that_has_not_joined_is_named(state: int) -> None:
    with pytest.raises(RetryableError, match="GPU-late") as refused:
        fabric.clique_of([gpu(), gpu(state, name="GPU-late")], is_strict=True)
    assert refused.value.reason is Reason.FABRIC_ERROR


def test_a_gpu_that_has_not_joined_counts_as_without_fabric_where_tolerated() -> None:
    seen = [gpu(GpuFabricState.IN_PROGRESS)]
    assert fabric.clique_of(seen, is_strict=False) == ""
    assert fabric.clique_of(seen, is_strict=True, tolerates_unfinished=True) == ""


def test_a_gpu_that_failed_to_join_is_named() -> None:
    with pytest.raises(PermanentError, match=r"GPU-a \(NVML error 999\)"):
        fabric.clique_of([gpu(status=999)], is_strict=True)
    assert fabric.clique_of([gpu(status=999)], is_strict=False) == ""


@pytest.mark.parametrize("other", [gpu(clique=3), gpu(cluster=OTHER)])
@pytest.mark.parametrize("is_strict", [True, False])
def test_gpus_in_several_cliques_are_refused(other: GpuFabricInfo, is_strict: bool) -> None:
    with pytest.raises(PermanentError, match="several NVLink cliques"):
        fabric.clique_of([gpu(), other], is_strict=is_strict)


OBSERVATIONS = st.lists(
    st.builds(
        gpu,
        state=st.integers(0, 3),
        status=st.sampled_from([0, 999]),
        cluster=st.sampled_from([RACK, OTHER, NOBODY]),
        clique=st.integers(0, 2),
    ),
    max_size=6,
)


@given(OBSERVATIONS, st.randoms(use_true_random=False), st.booleans())
def test_the_order_of_the_gpus_does_not_matter(
    seen: list[GpuFabricInfo], chance: object, is_strict: bool
) -> None:
    shuffled = list(seen)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert _outcome(seen, is_strict) == _outcome(shuffled, is_strict)


@given(OBSERVATIONS)
def test_strict_and_lenient_checks_give_the_same_clique(seen: list[GpuFabricInfo]) -> None:
    strict = _outcome(seen, is_strict=True)
    if not isinstance(strict, Reason):
        assert strict == _outcome(seen, is_strict=False)


def _outcome(seen: list[GpuFabricInfo], is_strict: bool) -> str | Reason:
    try:
        return fabric.clique_of(seen, is_strict=is_strict)
    except DriverError as error:
        return error.reason


@pytest.mark.parametrize("version", ["570.158.01", "570.158.2", "580.95.05", "1000.0"])
def test_a_driver_whose_imex_finds_names_is_accepted(version: str) -> None:
    fabric.check_driver(version)


@pytest.mark.parametrize("version", ["570.158.00", "570.157.99", "565.57", "9.999.99"])
def test_an_older_driver_is_refused_with_the_gate_to_set(version: str) -> None:
    with pytest.raises(PermanentError, match=version) as refused:
        fabric.check_driver(version)
    assert "IMEXDaemonsWithDNSNames=false" in refused.value.event_text
