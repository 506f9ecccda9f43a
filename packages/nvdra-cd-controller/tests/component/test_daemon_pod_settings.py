# SPDX-License-Identifier: Apache-2.0
"""Settings of the daemons' pods, as a real API server stores them."""

from nvdra_testing.control_plane.controller import ControllerProcess
from nvdra_testing.control_plane.domain_installation import DriverInstallation
from nvdra_testing.polling import wait_until

SETTINGS = (
    "--cd-daemon-image-pull-policy=Always",
    "--cd-daemon-priority-class-name=system-node-critical",
    "--cd-daemon-http-endpoint=:8080",
    '--cd-daemon-resources={"requests": {"cpu": 0.1}, "limits": {"cpu": "2000m", "memory": "1Gi"}}',
)


def written(controller: ControllerProcess, verb: str) -> int:
    """How often a DaemonSet was written in this way, counted in the log at level 6."""
    asked = f'API request verb="{verb}" resource="daemonsets"'
    return controller.log.read_text().count(asked)


async def test_settings_of_the_daemons_are_written_once(
    world: DriverInstallation,
) -> None:
    with world.run_controller(*SETTINGS, "-v=6") as controller:
        world.create_domain()
        uid = await world.wait_children_ready()
        spec = (world.get(world.daemonset_path(uid)) or {})["spec"]["template"]["spec"]
        container = spec["containers"][0]
        assert spec["priorityClassName"] == "system-node-critical"
        assert container["imagePullPolicy"] == "Always"
        assert container["resources"] == {
            "claims": [{"name": "compute-domain-daemon"}],
            "requests": {"cpu": "100m"},
            "limits": {"cpu": "2", "memory": "1Gi"},
        }

        port = {"name": "http", "containerPort": 8080, "protocol": "TCP"}
        assert container["ports"] == [port]
        assert {"name": "HTTP_ENDPOINT", "value": ":8080"} in container["env"]

        world.create_labelled_node("a", uid)  # the domain is reconciled once more
        await wait_until(lambda: world.status().get("expectedNodes") == 1)
        assert (written(controller, "POST"), written(controller, "PUT")) == (1, 0)


async def test_settings_reach_existing_daemonsets_and_stay_when_they_are_emptied(
    world: DriverInstallation,
) -> None:
    with world.run_controller():
        world.create_domain()
        uid = await world.wait_children_ready()

    def priority() -> object:
        stored = world.get(world.daemonset_path(uid)) or {}
        return stored["spec"]["template"]["spec"].get("priorityClassName")

    assert priority() is None
    with world.run_controller(*SETTINGS):
        await wait_until(lambda: priority() == "system-node-critical")
    with world.run_controller():
        world.create_labelled_node("a", uid)
        await wait_until(lambda: world.status().get("expectedNodes") == 1)
        assert priority() == "system-node-critical"


async def test_daemons_sample_traces_as_the_controller_does(world: DriverInstallation) -> None:
    variables = {
        "OTEL_SDK_DISABLED": "false",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_TRACES_SAMPLER": "traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret",
    }
    with world.run_controller(variables=variables):
        world.create_domain()
        uid = await world.wait_children_ready()
    stored = world.get(world.daemonset_path(uid)) or {}
    environment = stored["spec"]["template"]["spec"]["containers"][0]["env"]
    given = {each["name"]: each.get("value") for each in environment}
    assert {name: value for name, value in given.items() if name.startswith("OTEL_")} == {
        name: value for name, value in variables.items() if not name.endswith("HEADERS")
    }
