"""What GPUs say of their fabric, and the clique of the node that follows."""

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.types.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.types.ids import GpuUUID
from nvdra_cd_plugin import fabric
from nvdra_cd_plugin.fabric import Observation, State

RACK = UUID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5")
OTHER = UUID("6f1c7a52-0d3e-5b8a-9c41-27e5a0d1b672")
NOBODY = UUID(int=0)


def gpu(
    state: int = State.COMPLETED,
    status: int = fabric.SUCCESS,
    cluster: UUID = RACK,
    clique: int = 2,
    name: str = "GPU-a",
) -> Observation:
    return Observation(GpuUUID(name), state, status, cluster, clique)


def test_gpus_of_one_rack_make_its_clique() -> None:
    assert fabric.clique([gpu(), gpu(), gpu()], is_strict=True) == f"{RACK}.2"


@pytest.mark.parametrize(
    "seen",
    [
        [],
        [gpu(State.NOT_SUPPORTED, cluster=NOBODY)],
        [gpu(cluster=NOBODY, clique=0)] * 8,
    ],
    ids=["no GPU", "no NVLink", "NVLink inside the node"],
)
def test_without_a_fabric_of_several_nodes_there_is_no_clique(seen: Sequence[Observation]) -> None:
    assert fabric.clique(seen, is_strict=True) == ""
    assert fabric.clique(seen, is_strict=False) == ""


@pytest.mark.parametrize("state", [State.NOT_STARTED, State.IN_PROGRESS, 9])
def test_a_gpu_on_its_way_is_waited_for_by_name(state: int) -> None:
    with pytest.raises(RetryableError, match="GPU-late") as refused:
        fabric.clique([gpu(), gpu(state, name="GPU-late")], is_strict=True)
    assert refused.value.reason is Reason.FABRIC_ERROR


def test_a_gpu_on_its_way_has_none_where_that_is_tolerated() -> None:
    seen = [gpu(State.IN_PROGRESS)]
    assert fabric.clique(seen, is_strict=False) == ""
    assert fabric.clique(seen, is_strict=True, tolerates_unfinished=True) == ""


def test_a_gpu_that_failed_to_join_is_told_of() -> None:
    with pytest.raises(PermanentError, match=r"GPU-a \(NVML error 999\)"):
        fabric.clique([gpu(status=999)], is_strict=True)
    assert fabric.clique([gpu(status=999)], is_strict=False) == ""


@pytest.mark.parametrize("other", [gpu(clique=3), gpu(cluster=OTHER)])
@pytest.mark.parametrize("is_strict", [True, False])
def test_one_node_is_in_one_clique(other: Observation, is_strict: bool) -> None:
    with pytest.raises(PermanentError, match="several NVLink cliques"):
        fabric.clique([gpu(), other], is_strict=is_strict)


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
    seen: list[Observation], chance: object, is_strict: bool
) -> None:
    shuffled = list(seen)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert _outcome(seen, is_strict) == _outcome(shuffled, is_strict)


@given(OBSERVATIONS)
def test_a_strict_clique_is_the_lenient_one(seen: list[Observation]) -> None:
    strict = _outcome(seen, is_strict=True)
    if not isinstance(strict, Reason):
        assert strict == _outcome(seen, is_strict=False)


def _outcome(seen: list[Observation], is_strict: bool) -> str | Reason:
    try:
        return fabric.clique(seen, is_strict=is_strict)
    except DriverError as error:
        return error.reason


@pytest.mark.parametrize("version", ["570.158.01", "570.158.2", "580.95.05", "1000.0"])
def test_a_driver_whose_imex_knows_names_is_taken(version: str) -> None:
    fabric.check_driver(version)


@pytest.mark.parametrize("version", ["570.158.00", "570.157.99", "565.57", "9.999.99"])
def test_an_older_driver_is_refused_with_the_gate_to_set(version: str) -> None:
    with pytest.raises(PermanentError, match=version) as refused:
        fabric.check_driver(version)
    assert "IMEXDaemonsWithDNSNames=false" in refused.value.advice
