"""What the settings say of the daemons' pods, as a real API server stores it."""

from cd_world import World
from controller import Controller
from waiting import until

SETTINGS = (
    "--cd-daemon-image-pull-policy=Always",
    "--cd-daemon-priority-class-name=system-node-critical",
    "--cd-daemon-http-endpoint=:8080",
    '--cd-daemon-resources={"requests": {"cpu": 0.1}, "limits": {"cpu": "2000m", "memory": "1Gi"}}',
)


def written(controller: Controller, verb: str) -> int:
    """How often a DaemonSet was written so, as the log says at level 6."""
    asked = f"asked the API server verb={verb} resource=daemonsets"
    return controller.log.read_text().count(asked)


async def test_what_the_settings_say_of_the_daemons_is_written_once(world: World) -> None:
    with world.controlled(*SETTINGS, "-v=6") as controller:
        world.create()
        uid = await world.formed()
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

        world.node("a", uid)  # the domain is looked at once more
        await until(lambda: world.status().get("expectedNodes") == 1)
        assert (written(controller, "POST"), written(controller, "PUT")) == (1, 0)


async def test_they_reach_daemonsets_that_are_there_and_stay_when_they_are_emptied(
    world: World,
) -> None:
    with world.controlled():
        world.create()
        uid = await world.formed()

    def priority() -> object:
        stored = world.get(world.daemonset_path(uid)) or {}
        return stored["spec"]["template"]["spec"].get("priorityClassName")

    assert priority() is None
    with world.controlled(*SETTINGS):
        await until(lambda: priority() == "system-node-critical")
    with world.controlled():
        world.node("a", uid)
        await until(lambda: world.status().get("expectedNodes") == 1)
        assert priority() == "system-node-critical"
