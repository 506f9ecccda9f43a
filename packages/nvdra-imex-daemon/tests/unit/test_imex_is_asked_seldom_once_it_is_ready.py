"""How often nvidia-imex-ctl is asked."""

from nvdra_imex_daemon import asking


def test_it_is_asked_often_while_forming_and_seldom_when_stable() -> None:
    assert [round(asking.pause_s(n, 0.0), 1) for n in (1, 2, 3, 4, 5, 6, 50)] == [
        *(0.2, 0.4, 0.8, 1.6),
        *(3.0, 3.0, 3.0),
    ]
    assert asking.pause_s(0, 0.5) == asking.STABLE_S
