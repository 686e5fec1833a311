"""A create's parts, as a watch shows them: they follow one another without a gap, whatever came late or not at all."""

from typing import Any

from excise.substrates.kubernetes.spans import SET_UP, Milestones
from excise.substrates.kubernetes.watch import Followed
from excise.trace import Trace, recording

RUNNING = {"containerStatuses": [{"name": "sandbox", "state": {"running": {}}}]}


def pod(version: int, *, node: str = "", status: dict[str, Any] | None = None) -> dict[str, Any]:
    meta = {"name": "p", "uid": "u", "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"nodeName": node} if node else {}, "status": status or {}}


def spans(milestones: Milestones) -> list[tuple[str, str, int]]:
    with recording(Trace()) as trace:
        milestones.note("box")
    assert [(one.sandbox, one.outcome) for one in trace.spans] == [("box", "ok")] * len(trace.spans)
    last_ns = milestones.begun_ns
    for one in trace.spans:
        assert one.start_ns == last_ns
        last_ns = one.end_ns
    return [(one.name, one.kind, one.duration_ns) for one in trace.spans]


def at(**moments_ns: int) -> Milestones:
    made = Milestones()
    made.begun_ns = 1000
    for name, moment_ns in moments_ns.items():
        made.reached(name, 1000 + moment_ns)
    return made


def test_an_image_that_was_there_took_no_time() -> None:
    found = spans(at(accepted=10, scheduled=15, started=100))
    assert found == [("accepted", "", 10), ("scheduled", "", 5), ("started", "", 85)]


def test_a_pull_is_its_own_part_between_set_up_and_start() -> None:
    found = spans(at(accepted=10, scheduled=15, pulling=40, pulled=90, started=100))
    assert found[2:] == [("started", SET_UP, 25), ("pulled", "", 50), ("started", "", 10)]


def test_an_event_that_came_after_what_it_led_to_ends_there() -> None:
    found = spans(at(accepted=10, scheduled=15, pulling=40, pulled=120, started=100))
    assert found[2:] == [("started", SET_UP, 25), ("pulled", "", 60), ("started", "", 0)]


def test_a_node_that_was_chosen_before_the_answer_came_took_no_time() -> None:
    assert spans(at(accepted=20, scheduled=15, started=100)) == [
        ("accepted", "", 20),
        ("scheduled", "", 0),
        ("started", "", 80),
    ]


def test_each_state_is_taken_from_the_watch_when_it_first_shows() -> None:
    followed, milestones = Followed("p"), Milestones()
    milestones.attach(followed)
    followed.note({"reason": "Pulled", "message": "already present on machine"})
    followed.show(pod(1))
    assert milestones.at_ns == {}
    followed.show(pod(2, node="n"))
    first = milestones.at_ns["scheduled"]
    followed.note({"reason": "Pulling"})
    followed.note({"reason": "Pulled", "message": "Successfully pulled"})
    followed.show(pod(3, node="n", status=RUNNING))
    assert list(milestones.at_ns) == ["scheduled", "pulling", "pulled", "started"]
    assert milestones.at_ns["scheduled"] == first
    milestones.detach(followed)
    followed.note({"reason": "Pulling"})
