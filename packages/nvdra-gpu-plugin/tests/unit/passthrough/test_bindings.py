# SPDX-License-Identifier: Apache-2.0
"""The table of steps, over a kernel that may let every write succeed, fail, block or do nothing."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from nvdra_api.ids import PciAddress
from nvdra_gpu_plugin.passthrough import bindings
from nvdra_gpu_plugin.passthrough.bindings import (
    STEPS,
    Action,
    FunctionBinding,
    Goal,
    Holding,
    Place,
    Step,
)
from nvdra_gpu_plugin.passthrough.pci_functions import PciBus, PciFunction, is_vfio

GPU, AUDIO = PciAddress("0000:3b:00.0"), PciAddress("0000:3b:00.1")
GROUP = 7
VFIO = "vfio-pci"


def function(
    pci: PciAddress = GPU, driver: str | None = None, override: str | None = None, group: int = 7
) -> PciFunction:
    return PciFunction(pci, 0x10DE, 0x2330, 0x030200, driver, override, group)


def bus(*functions: PciFunction, vfio: bool = False, nvidia: bool = False) -> PciBus:
    return PciBus(
        functions={each.pci: each for each in functions},
        drivers=frozenset({"nvidia", VFIO, "snd_hda_intel"}),
        vfio_groups=frozenset({GROUP} if vfio else ()),
        nvidia_gpus=frozenset({GPU} if nvidia else ()),
        has_iommu=True,
    )


def test_the_table_has_a_step_for_every_place() -> None:
    every = {(place, is_right) for place in Place for is_right in (True, False)}
    assert set(STEPS[True]) == every
    assert set(STEPS[False]) == every


def test_a_bind_follows_from_one_place_only() -> None:
    for table in STEPS.values():
        assert {key for key, step in table.items() if step is Step.BIND} == {(Place.FREE, True)}


def test_who_has_a_gpu() -> None:
    def holding(found: PciBus) -> Holding:
        return bindings.holding(found.functions[GPU], found, is_claimed=False)

    assert holding(bus(function(driver="nvidia"), nvidia=True)) is Holding.NVIDIA
    assert holding(bus(function(driver=VFIO), vfio=True)) is Holding.PREBOUND
    assert holding(bus(function(driver="nouveau"))) is Holding.FOREIGN
    assert holding(bus(function())) is Holding.FREE
    assert holding(bus(function(), nvidia=True)) is Holding.UNBINDING
    assert holding(bus(function(), vfio=True)) is Holding.UNBINDING
    claimed = bus(function(), vfio=True)
    assert bindings.holding(claimed.functions[GPU], claimed, is_claimed=True) is Holding.CLAIM


def test_a_gpu_without_driver_beside_one_on_vfio_is_not_certainly_unbinding() -> None:
    found = bus(function(), function(AUDIO, VFIO), vfio=True)
    assert not bindings.is_unbinding(found.functions[GPU], found)


def test_the_steps_to_vfio_and_back() -> None:
    board = [FunctionBinding(GPU, VFIO, "nvidia"), FunctionBinding(AUDIO, VFIO, "snd_hda_intel")]
    kernel = Kernel({GPU: Device("nvidia"), AUDIO: Device("snd_hda_intel")})
    assert names(kernel, bindings.to_vfio(board)) == [
        (AUDIO, Step.SET_OVERRIDE, VFIO),
        (GPU, Step.SET_OVERRIDE, VFIO),
        (AUDIO, Step.UNBIND, "snd_hda_intel"),
        (GPU, Step.UNBIND, "nvidia"),
        (AUDIO, Step.BIND, VFIO),
        (GPU, Step.BIND, VFIO),
    ]
    assert names(kernel, bindings.to_vfio(board)) == []
    assert names(kernel, bindings.to_former(board)) == [
        (GPU, Step.SET_OVERRIDE, None),
        (AUDIO, Step.SET_OVERRIDE, None),
        (AUDIO, Step.UNBIND, VFIO),
        (GPU, Step.UNBIND, VFIO),
        (GPU, Step.BIND, "nvidia"),
        (AUDIO, Step.BIND, "snd_hda_intel"),
    ]
    assert names(kernel, bindings.to_former(board)) == []


def test_a_former_override_of_another_driver_is_restored_after_the_bind() -> None:
    board = [FunctionBinding(GPU, VFIO, "nvidia", former_override="nouveau")]
    kernel = Kernel({GPU: Device(VFIO, override=VFIO)})
    assert names(kernel, bindings.to_former(board)) == [
        (GPU, Step.SET_OVERRIDE, "nvidia"),
        (GPU, Step.UNBIND, VFIO),
        (GPU, Step.BIND, "nvidia"),
        (GPU, Step.SET_OVERRIDE, "nouveau"),
    ]


def test_a_companion_that_stays_on_vfio_leaves_it_for_a_moment() -> None:
    """While it is there, links do not say whether the GPU is free."""
    board = [FunctionBinding(GPU, VFIO, "nvidia"), FunctionBinding(AUDIO, VFIO, VFIO, VFIO)]
    kernel = Kernel({GPU: Device(VFIO, override=VFIO), AUDIO: Device(VFIO, override=VFIO)})
    assert names(kernel, bindings.to_former(board)) == [
        (GPU, Step.SET_OVERRIDE, None),
        (GPU, Step.UNBIND, VFIO),
        (AUDIO, Step.UNBIND, VFIO),
        (GPU, Step.BIND, "nvidia"),
        (AUDIO, Step.BIND, VFIO),
    ]


def test_nothing_is_changed_where_one_function_is_on_another_driver() -> None:
    board = [FunctionBinding(GPU, VFIO, "nvidia"), FunctionBinding(AUDIO, VFIO, None)]
    found = bus(function(driver="nvidia"), function(AUDIO, "snd_hda_intel"), nvidia=True)
    action = bindings.next_action(bindings.to_vfio(board), found, (), is_cleared=False)
    assert (action.step, action.pci, action.place) == (Step.REFUSE, AUDIO, Place.ELSEWHERE)


def test_what_someone_has_given_another_driver_is_left() -> None:
    goals = bindings.to_former([FunctionBinding(GPU, VFIO, "nvidia")])
    theirs = bus(function(driver="nouveau", override="nouveau"))
    assert bindings.next_action(goals, theirs, (), is_cleared=False).step is Step.NOTHING
    ours = bus(function(driver="nouveau", override=VFIO))
    action = bindings.next_action(goals, ours, (), is_cleared=False)
    assert (action.step, action.override) == (Step.SET_OVERRIDE, None)


def test_a_former_driver_that_is_not_loaded_leaves_the_function_free() -> None:
    goals = bindings.to_former([FunctionBinding(GPU, VFIO, "nouveau")])
    assert bindings.next_action(goals, bus(function()), (), is_cleared=False).step is Step.NOTHING


def test_a_group_is_viable_without_drivers_of_the_host() -> None:
    port = PciFunction(PciAddress("0000:3a:01.0"), 0x8086, 1, 0x060400, "pcieport", None, GROUP)
    found = bus(port, function(driver=VFIO), function(AUDIO))
    assert bindings.not_viable(found, GROUP) == ()
    held = function(AUDIO, "snd_hda_intel")
    assert bindings.not_viable(bus(port, function(driver=VFIO), held), GROUP) == (held,)


# A kernel, and writes that end in every way


@dataclass
class Device:
    """A function of the kernel. While it is unbinding, `driver` is None and `remover` the driver
    that has not returned."""

    driver: str | None
    remover: str | None = None
    override: str | None = None


@dataclass
class Kernel:
    """What of table A1 the links show. Its functions share a group."""

    devices: dict[PciAddress, Device]
    outcomes: list[str] = field(default_factory=list)

    def bus(self) -> PciBus:
        holders = {each.driver or each.remover for each in self.devices.values()}
        has_nvidia = "nvidia" in (self.devices[GPU].driver, self.devices[GPU].remover)
        functions = (
            function(pci, device.driver, device.override) for pci, device in self.devices.items()
        )
        has_vfio = any(is_vfio(name) for name in holders if name)
        return bus(*functions, vfio=has_vfio, nvidia=has_nvidia)

    def write(self, action: Action) -> None:
        device = self.devices[action.pci]
        outcome = self.outcomes.pop(0) if self.outcomes else "done"
        if outcome == "fails":
            return
        if action.step is Step.SET_OVERRIDE:
            device.override = action.override
        elif action.step is Step.UNBIND:
            assert device.driver == action.driver
            device.driver = None
            if outcome == "blocks" and action.driver in (VFIO, "nvidia"):
                device.remover = action.driver
        else:
            assert device.remover is None, f"bind of {action.pci} blocks for ever"
            assert device.override in (None, action.driver), "the driver refuses to bind"
            if outcome != "blocks":  # it "succeeds" and leaves the function without a driver
                device.driver = action.driver

    def release(self) -> None:
        """Let the holders close what they have open."""
        for device in self.devices.values():
            device.remover = None


def names(kernel: Kernel, goals: tuple[Goal, ...]) -> list[tuple[PciAddress, Step, str | None]]:
    """The writes of a switch."""
    done, last = switch(kernel, goals, patience=0)
    assert last.step is Step.NOTHING
    return [
        (action.pci, action.step, action.override if action.driver is None else action.driver)
        for action in done
    ]


def switch(
    kernel: Kernel, goals: tuple[Goal, ...], patience: int, writes: int = 20
) -> tuple[list[Action], Action]:
    """The writes of a switch, as the binder does them, and what it ends with."""
    done: list[Action] = []
    is_cleared = False
    while True:
        action = bindings.next_action(goals, kernel.bus(), (), is_cleared=is_cleared)
        if action.step in (Step.NOTHING, Step.REFUSE) or action in done or len(done) == writes:
            return done, action
        if action.step is Step.WAIT:
            if patience == 0:
                return done, action
            patience -= 1
            kernel.release()
            continue
        done.append(action)
        is_cleared = is_cleared or action.step is Step.BIND
        kernel.write(action)
        assert len(done) < 20


OVERRIDES = st.sampled_from([None, VFIO, "nvidia", "nouveau"])
FORMERS = st.sampled_from([None, "nvidia", VFIO])
AUDIO_FORMERS = st.sampled_from([None, "snd_hda_intel", VFIO])
OUTCOMES = st.lists(st.sampled_from(["done", "done", "fails", "blocks"]), max_size=12)


@st.composite
def boards(draw: st.DrawFn) -> tuple[list[FunctionBinding], Kernel]:
    """A board in any state that an interrupted switch, or another program, may leave."""
    board = [FunctionBinding(GPU, VFIO, draw(FORMERS), draw(OVERRIDES))]
    devices = {}
    if draw(st.booleans()):
        board.append(FunctionBinding(AUDIO, VFIO, draw(AUDIO_FORMERS), draw(OVERRIDES)))
    for part in board:
        driver = draw(st.sampled_from([part.former_driver, VFIO, None, "nouveau"]))
        removers = [None, VFIO, "nvidia"] if part.pci == GPU else [None, VFIO]
        remover = draw(st.sampled_from(removers)) if driver is None else None
        devices[part.pci] = Device(driver, remover, draw(OVERRIDES))
    return board, Kernel(devices, draw(OUTCOMES))


@given(boards(), st.booleans(), st.integers(0, 2))
@settings(max_examples=1000, deadline=None)
def test_from_every_state_a_switch_ends_and_never_binds_while_an_unbind_is_in_flight(
    given_board: tuple[list[FunctionBinding], Kernel], to_vfio: bool, patience: int
) -> None:
    """The kernel of the test refuses a bind that would block."""
    board, kernel = given_board
    goals = bindings.to_vfio(board) if to_vfio else bindings.to_former(board)
    _, last = switch(kernel, goals, patience)
    if last.step is Step.NOTHING:
        for goal in goals:
            device = kernel.devices[goal.pci]
            reached = device.driver == goal.driver and device.override == goal.override
            assert reached or (not to_vfio and device.driver == "nouveau")
            assert device.remover is None or goal.driver is None


@given(boards(), st.integers(0, 12))
@settings(max_examples=1000, deadline=None)
def test_a_switch_that_is_interrupted_anywhere_can_be_taken_back(
    given_board: tuple[list[FunctionBinding], Kernel], writes: int
) -> None:
    board, kernel = given_board
    kernel.devices = {
        part.pci: Device(part.former_driver, None, part.former_override) for part in board
    }
    switch(kernel, bindings.to_vfio(board), patience=0, writes=writes)
    kernel.outcomes = []
    _, last = switch(kernel, bindings.to_former(board), patience=1)
    assert last.step is Step.NOTHING
    assert kernel.devices == {
        part.pci: Device(part.former_driver, None, part.former_override) for part in board
    }
