# SPDX-License-Identifier: Apache-2.0
import itertools
import json

from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.meta import JsonObject
from nvdra_runtime.kube import informer_cache
from nvdra_runtime.kube.informer_cache import InformerCache, WatchResult


def obj(name: str, version: int, value: int = 0) -> JsonObject:
    metadata = {"name": name, "uid": f"uid-{name}-{value}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": value}


def event(kind: str, each: JsonObject) -> bytes:
    return json.dumps({"type": kind, "object": each}).encode()


def listed(version: int, *items: JsonObject) -> InformerCache:
    collection = InformerCache()
    collection.replace({"metadata": {"resourceVersion": str(version)}, "items": list(items)})
    return collection


def test_a_list_replaces_what_was_known_deletions_in_the_gap_included() -> None:
    collection = listed(5, obj("a", 1), obj("b", 2))
    assert collection.replace({"metadata": {"resourceVersion": "9"}, "items": [obj("b", 2)]})
    assert set(collection.objects()) == {"b"}
    assert collection.resource_version == "9"


def test_a_list_that_says_nothing_new_changes_nothing() -> None:
    collection = listed(5, obj("a", 1))
    assert not collection.replace({"metadata": {"resourceVersion": "9"}, "items": [obj("a", 1)]})


def test_objects_of_a_list_say_their_kind_as_those_of_a_watch_do() -> None:
    kind = {"apiVersion": "apps/v1", "kind": "DaemonSet"}
    cache = InformerCache()
    cache.apply_watch_line(event("ADDED", {**obj("a", 5), **kind}))
    document = {"apiVersion": "apps/v1", "kind": "DaemonSetList", "items": [obj("a", 5)]}
    assert not cache.replace({**document, "metadata": {"resourceVersion": "6"}})
    assert cache.get("a") == {**obj("a", 5), **kind}


def test_a_list_may_say_null_for_no_items() -> None:
    collection = listed(5, obj("a", 1))
    collection.replace({"metadata": {"resourceVersion": "6"}, "items": None})
    assert collection.objects() == {}


def test_events_add_change_and_remove() -> None:
    collection = listed(5)
    assert collection.apply_watch_line(event("ADDED", obj("a", 6))) is WatchResult.CHANGED
    assert (
        collection.apply_watch_line(event("MODIFIED", obj("a", 7, value=1))) is WatchResult.CHANGED
    )
    assert collection.objects() == {"a": obj("a", 7, value=1)}
    assert (
        collection.apply_watch_line(event("DELETED", obj("a", 8, value=1))) is WatchResult.CHANGED
    )
    assert collection.objects() == {}
    assert collection.resource_version == "8"


def test_an_object_that_is_added_twice_is_known_once() -> None:
    collection = listed(5, obj("a", 3))
    assert collection.apply_watch_line(event("ADDED", obj("a", 3))) is WatchResult.UNCHANGED


def test_a_bookmark_only_moves_the_place_to_resume_from() -> None:
    collection = listed(5, obj("a", 3))
    bookmark = {"kind": "ResourceSlice", "metadata": {"resourceVersion": "40"}}
    assert collection.apply_watch_line(event("BOOKMARK", bookmark)) is WatchResult.UNCHANGED
    assert collection.resource_version == "40"
    assert set(collection.objects()) == {"a"}


def test_an_error_in_the_stream_asks_for_a_list() -> None:
    status = {"kind": "Status", "code": 410, "reason": "Expired"}
    assert listed(5).apply_watch_line(event("ERROR", status)) is WatchResult.RELIST


def test_our_own_write_counts_before_the_watch_tells_of_it() -> None:
    collection = listed(5)
    collection.record_write(obj("a", 6))
    assert set(collection.objects()) == {"a"}
    assert collection.apply_watch_line(event("ADDED", obj("a", 6))) is WatchResult.UNCHANGED
    assert set(collection.objects()) == {"a"}


def test_an_older_event_does_not_undo_our_own_write() -> None:
    collection = listed(5, obj("a", 5, value=1))
    collection.record_write(obj("a", 8, value=2))
    collection.apply_watch_line(event("MODIFIED", obj("a", 7, value=9)))
    assert collection.objects()["a"]["spec"] == 2


def test_a_write_that_others_undid_is_gone_once_the_watch_is_past_it() -> None:
    collection = listed(5)
    collection.record_write(obj("a", 6))
    collection.apply_watch_line(event("ADDED", obj("a", 6)))
    assert collection.apply_watch_line(event("DELETED", obj("a", 7))) is WatchResult.CHANGED
    assert collection.objects() == {}


def test_a_write_that_the_watch_has_passed_already_is_not_brought_back() -> None:
    collection = listed(9)
    collection.record_write(obj("a", 7))
    assert collection.objects() == {}


def test_our_own_delete_counts_before_the_watch_tells_of_it() -> None:
    collection = listed(5, obj("a", 3))
    collection.record_delete(obj("a", 3))
    assert collection.objects() == {}
    collection.apply_watch_line(event("DELETED", obj("a", 6)))
    collection.apply_watch_line(event("ADDED", obj("a", 7)))
    assert set(collection.objects()) == {"a"}


def test_versions_that_are_no_numbers_are_compared_for_equality_alone() -> None:
    collection = InformerCache()
    collection.replace({"metadata": {"resourceVersion": "abc"}, "items": []})
    mine = obj("a", 1)
    mine["metadata"]["resourceVersion"] = "def"
    collection.record_write(mine)
    assert set(collection.objects()) == {"a"}
    collection.apply_watch_line(event("ADDED", mine))
    assert set(collection.objects()) == {"a"}


def test_keys_tell_namespaces_apart() -> None:
    assert informer_cache.object_key({"metadata": {"name": "a"}}) == "a"
    assert informer_cache.object_key({"metadata": {"name": "a", "namespace": "n"}}) == "n/a"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["write", "delete", "ours", "ours away", "catch up", "list"]),
            st.sampled_from("ab"),
        ),
        max_size=30,
    )
)
def test_after_catching_up_we_know_what_the_server_knows(history: list[tuple[str, str]]) -> None:
    """Others and we write, the watch lags behind, lists come in between."""
    versions = itertools.count(1)
    truth: dict[str, JsonObject] = {}
    pending: list[bytes] = []
    collection = listed(0)
    for action, name in history:
        if action in ("write", "ours"):
            version = next(versions)
            kind = "MODIFIED" if name in truth else "ADDED"
            value = truth[name]["spec"] if name in truth else version
            truth[name] = obj(name, version, value)
            pending.append(event(kind, truth[name]))
            if action == "ours":
                collection.record_write(truth[name])
                assert collection.objects()[name] == truth[name]
        elif action in ("delete", "ours away") and name in truth:
            gone = truth.pop(name)
            pending.append(event("DELETED", obj(name, next(versions), gone["spec"])))
            if action == "ours away":
                collection.record_delete(gone)
        elif action == "list":
            pending.clear()
            now = str(next(versions))
            collection.replace({"metadata": {"resourceVersion": now}, "items": [*truth.values()]})
        elif action == "catch up" and pending:
            assert collection.apply_watch_line(pending.pop(0)) is not WatchResult.RELIST
    for line in pending:
        collection.apply_watch_line(line)
    assert collection.objects() == truth


def test_what_moved_is_told_once_by_its_key() -> None:
    collection = listed(5, obj("a", 1), obj("b", 2))
    assert collection.take_changed_keys() == {"a", "b"}
    assert collection.take_changed_keys() == frozenset()

    collection.apply_watch_line(event("MODIFIED", obj("a", 6, value=1)))
    collection.apply_watch_line(event("DELETED", obj("b", 7)))
    collection.apply_watch_line(event("ADDED", obj("c", 8)))
    collection.apply_watch_line(event("BOOKMARK", obj("", 9)))
    assert collection.take_changed_keys() == {"a", "b", "c"}
    collection.replace({"metadata": {"resourceVersion": "9"}, "items": [obj("c", 8)]})
    assert collection.take_changed_keys() == {"a"}


def test_our_own_writes_are_told_and_the_watch_that_repeats_them_is_not() -> None:
    collection = listed(5, obj("a", 3))
    collection.take_changed_keys()

    collection.record_write(obj("a", 6, value=1))
    assert collection.take_changed_keys() == {"a"}
    collection.apply_watch_line(event("MODIFIED", obj("a", 6, value=1)))
    assert collection.take_changed_keys() == frozenset()
    collection.record_delete(obj("a", 6))
    assert collection.take_changed_keys() == {"a"}


def test_one_object_is_found_as_the_whole_collection_has_it() -> None:
    collection = listed(5, obj("a", 3))
    assert collection.get("a") == obj("a", 3)
    assert collection.get("b") is None

    collection.record_write(obj("a", 6, value=1))
    assert collection.get("a") == collection.objects()["a"] == obj("a", 6, value=1)
    collection.record_delete(collection.objects()["a"])
    assert collection.get("a") is None


def test_of_each_object_only_what_is_wanted_is_kept() -> None:
    collection = InformerCache(lambda each: {"metadata": each["metadata"]})
    collection.replace({"metadata": {"resourceVersion": "5"}, "items": [obj("a", 1, value=1)]})
    collection.apply_watch_line(event("ADDED", obj("b", 6, value=2)))
    collection.record_write(obj("c", 7, value=3))

    assert all(set(each) == {"metadata"} for each in collection.objects().values())
    assert set(collection.objects()) == {"a", "b", "c"}


def test_a_line_that_is_no_event_leads_to_a_new_list() -> None:
    for line in (b"", b"[]", b"1", b"null", b"[" * 100_000, b'"\\ud800"', b"\xff", b"9" * 10_000):
        assert listed(5, obj("a", 1)).apply_watch_line(line) is WatchResult.RELIST
    for kind in ("ADDED", "DELETED", "BOOKMARK"):
        for wrong in (
            "[]",
            "1",
            '{"metadata":[]}',
            '{"metadata":{"name":"a","resourceVersion":7}}',
        ):
            line = f'{{"type":"{kind}","object":{wrong}}}'.encode()
            assert listed(5, obj("a", 1)).apply_watch_line(line) is WatchResult.RELIST


def test_versions_of_many_digits_are_compared() -> None:
    """Python converts no text of 4,300 digits."""
    version = "1" * 5000
    written = obj("a", 1, value=1)
    written["metadata"]["resourceVersion"] = version
    cache = listed(5, obj("a", 1))
    cache.record_write(written)
    assert cache.objects()["a"] == written
    assert cache.apply_watch_line(event("MODIFIED", written)) is WatchResult.UNCHANGED
    assert cache.resource_version == version
