# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The copy of the pods agrees with the server after every failure that a watch can meet."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client, Limits
from cotenant.kube.api.decoding import Kind, Version
from cotenant.kube.api.reflector import TURN_S, Key, Pace, Reflector
from tests.kube.api_server import ApiServer, Refusal

QUICK = Limits(connect_s=5, answer_s=5, tries=2, first_pause_s=0.01, longest_pause_s=0.05, page=3)
PACE = Pace(silence_s=5, watches_s=0.01, lists_s=0.01)
SOON_SILENT = Pace(silence_s=0.1, watches_s=0.01, lists_s=0.01)


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    namespace: str
    uid: str
    resource_version: Version


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class Pod(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: Spec


PODS = Kind("pods", Pod)


@dataclass
class Replay:
    """A handler that does as it is told, and objects where it is told nonsense."""

    pods: dict[Key, Pod] = field(default_factory=dict)
    told: list[tuple[Pod | None, Pod | None]] = field(default_factory=list)

    def __call__(self, old: Pod | None, new: Pod | None) -> None:
        some = new or old
        assert some is not None
        key = (some.metadata.namespace, some.metadata.name)
        assert self.pods.get(key) == old
        assert old != new
        self.told.append((old, new))
        if new is None:
            del self.pods[key]
        else:
            self.pods[key] = new


def node_of(pod: Pod | None) -> str | None:
    return pod.spec.node_name if pod else None


def uid_of(pod: Pod | None) -> str | None:
    return pod.metadata.uid if pod else None


@dataclass
class Following:
    """A reflector at work, and what it told."""

    server: ApiServer
    reflector: Reflector[Pod]
    replay: Replay
    error_log: list[str]
    task: asyncio.Task[None]

    def agrees(self) -> bool:
        theirs = {
            key: (pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]) for key, pod in self.server.pods.items()
        }
        ours = {key: (pod.metadata.uid, pod.metadata.resource_version) for key, pod in self.reflector.objects.items()}
        return ours == theirs and self.replay.pods == dict(self.reflector.objects)

    async def settles(self) -> None:
        await until(self.agrees)

    async def watches(self) -> None:
        await until(lambda: self.server.watching > 0)


async def until(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not so():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def following(server: ApiServer, pace: Pace = PACE, limits: Limits = QUICK) -> AsyncIterator[Following]:
    """A server with three pods, and a reflector that has seen them and watches."""
    for name in ("a", "b", "c"):
        server.put(name)
    async with server.serving():
        client, replay, error_log = Client(Access(host="127.0.0.1", port=server.port), limits), Replay(), list[str]()
        reflector = Reflector(client, PODS, replay, pace=pace, report=error_log.append)
        task = asyncio.create_task(reflector.run())
        try:
            await reflector.synced.wait()
            follower = Following(server, reflector, replay, error_log, task)
            await follower.watches()
            yield follower
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=10)
            assert task.done()
            await client.close()


Story = Callable[[Following], Awaitable[None]]


def play(story: Story, pace: Pace = PACE, limits: Limits = QUICK) -> ApiServer:
    """Run a story in which the copy must agree with the server at the end."""
    server = ApiServer()

    async def told() -> None:
        async with following(server, pace, limits) as follower:
            await story(follower)
            await follower.settles()

    asyncio.run(told())
    return server


def test_changes_are_told_as_they_happen() -> None:
    async def story(follower: Following) -> None:
        server, told = follower.server, follower.replay.told
        await follower.settles()
        assert [old for old, _ in told] == [None, None, None]
        server.put("a", spec={"nodeName": "n1"})
        server.put("d")
        server.remove("b")
        await follower.settles()
        assert [(node_of(old), node_of(new)) for old, new in told[3:]] == [("", "n1"), (None, ""), ("", None)]

    assert play(story).requests("list") == 1


def test_a_handler_can_ask_at_which_version_something_went() -> None:
    async def story(follower: Following) -> None:
        server, gone = follower.server, list[tuple[str, str]]()

        def note(old: Pod | None, new: Pod | None) -> None:
            if old is not None and new is None:
                gone.append((old.metadata.name, second.handled_version))

        client = Client(Access(host="127.0.0.1", port=server.port), QUICK)
        second = Reflector(client, PODS, note, pace=PACE)
        task = asyncio.create_task(second.run())
        await second.synced.wait()
        server.put("d")
        last = int(server.pods["default", "d"]["metadata"]["resourceVersion"])
        server.remove("b")
        server.remove("c")
        await until(lambda: len(gone) == 2)
        assert gone == [("b", str(last + 1)), ("c", str(last + 2))]
        task.cancel()
        await asyncio.wait([task], timeout=10)
        await client.close()

    play(story)


def test_a_clean_end_of_the_watch_loses_nothing_and_costs_no_list() -> None:
    async def story(follower: Following) -> None:
        follower.server.end_watches()
        follower.server.put("d")
        follower.server.remove("a")

    server = play(story)
    assert (server.requests("list"), server.requests("watch")) == (1, 2)


def test_a_reset_connection_loses_nothing_and_costs_no_list() -> None:
    async def story(follower: Following) -> None:
        follower.server.reset_watches()
        follower.server.put("d")
        follower.server.remove("a")
        await follower.settles()
        assert len(follower.error_log) == 1
        assert "Interrupted" in follower.error_log[0]

    assert play(story).requests("list") == 1


def test_a_watch_that_hangs_is_opened_anew() -> None:
    async def story(follower: Following) -> None:
        follower.server.hang_watches()
        follower.server.put("d")
        follower.server.remove("a")
        await follower.settles()
        assert any("no response in time" in error for error in follower.error_log)

    assert play(story, SOON_SILENT).requests("list") == 1


def test_a_list_that_is_asked_for_finds_at_once_what_a_hung_watch_does_not_tell() -> None:
    async def story(follower: Following) -> None:
        server, reflector = follower.server, follower.reflector
        server.hang_watches()
        server.put("d")
        server.remove("a")
        asked = time.monotonic()
        reflector.relist()
        reflector.relist()  # the same one
        await follower.settles()
        assert reflector.listed >= asked
        await follower.watches()
        server.put("e")
        await follower.settles()
        assert follower.error_log == []

    assert play(story, Pace(silence_s=60, watches_s=0.01, lists_s=60)).requests("list") == 2


def test_deletions_that_no_watch_told_are_found_when_the_server_forgot_its_history() -> None:
    async def story(follower: Following) -> None:
        follower.server.reset_watches()
        follower.server.remove("a", unseen=True)
        follower.server.put("b")
        follower.server.forget()

    server = play(story)
    assert server.requests("list") == 2


def test_the_same_where_it_says_so_within_the_stream() -> None:
    async def story(follower: Following) -> None:
        follower.server.remove("a", unseen=True)
        follower.server.say_gone()

    assert play(story).requests("list") == 2


def test_the_same_where_it_says_so_in_the_stream_at_once() -> None:
    async def story(follower: Following) -> None:
        follower.server.gone_in_stream = True
        follower.server.remove("a", unseen=True)
        follower.server.forget()
        follower.server.reset_watches()

    assert play(story).requests("list") == 2


def test_a_server_that_always_forgets_is_not_listed_all_the_time() -> None:
    async def story(follower: Following) -> None:
        def listed(times: int) -> bool:
            follower.server.say_gone()
            return follower.server.requests("list") >= times

        began = time.monotonic()
        await until(lambda: listed(3))
        assert time.monotonic() - began >= 0.4

    play(story, Pace(watches_s=0.01, lists_s=0.4))


@pytest.mark.parametrize(
    ("status", "reason"), [(429, "TooManyRequests"), (500, "InternalError"), (503, "ServiceUnavailable")]
)
def test_throttling_and_server_errors_are_waited_out(status: int, reason: str) -> None:
    async def story(follower: Following) -> None:
        headers = {"Retry-After": "1"} if status == 429 else {}
        follower.server.refusals += [Refusal(status, reason, headers, only="watch") for _ in range(2)]
        follower.server.end_watches()
        follower.server.put("d")
        await follower.settles()
        assert [f"{status} {reason}" in error for error in follower.error_log] == [True, True]

    assert play(story).requests("list") == 1


def test_a_version_that_the_server_cannot_answer_is_given_up_for_a_list() -> None:
    async def story(follower: Following) -> None:
        follower.server.refusals += [Refusal(504, "Timeout", only="watch") for _ in range(3)]
        follower.server.end_watches()
        follower.server.put("d")

    assert play(story).requests("list") == 2


def test_a_list_that_fails_is_tried_again() -> None:
    async def story(follower: Following) -> None:
        follower.server.refusals += [Refusal(500, only="list") for _ in range(5)]
        follower.server.say_gone()
        follower.server.remove("a")

    play(story)


@pytest.mark.parametrize(
    "line",
    [
        b"no json\n",
        b"{}\n",
        b'{"type": "MODIFIED"}\n',
        b'{"x": ' + b"[" * 100_000 + b"\n",
        b"\xff\xfe\n",
        b'"\xff"\n',
        b'{"type": "ADDED", "obj',
    ],
    ids=["no json", "no event", "no object", "deep", "no text", "no UTF-8", "half a line"],
)
def test_a_line_that_is_no_event_costs_nothing_but_a_new_watch(line: bytes) -> None:
    async def story(follower: Following) -> None:
        follower.server.say(line)
        follower.server.put("d")
        if not line.endswith(b"\n"):
            follower.server.end_watches()
        follower.server.remove("a")
        await follower.settles()
        assert len(follower.replay.told) == 5

    play(story)


def test_empty_lines_and_unknown_types_are_passed_over() -> None:
    async def story(follower: Following) -> None:
        follower.server.say(b"\n\n")
        follower.server.say_event("SOMETHING", {"metadata": {"resourceVersion": "1000"}})
        await until(lambda: follower.reflector.counts["undecodable"] == 1)

    assert play(story).requests("list") == 1


def test_an_event_cut_into_pieces_is_one_event() -> None:
    async def story(follower: Following) -> None:
        pod = follower.server.pods["default", "a"]
        moved = pod | {"spec": {"nodeName": "n9"}, "metadata": pod["metadata"] | {"resourceVersion": "900"}}
        follower.server.pods["default", "a"] = moved
        line = msgspec.json.encode({"type": "MODIFIED", "object": moved}) + b"\n"
        for start in range(0, len(line), 7):
            follower.server.say(line[start : start + 7])
            await asyncio.sleep(0)

    assert play(story).requests("watch") == 1


def test_an_event_beyond_all_bounds_is_not_kept_in_memory() -> None:
    async def story(follower: Following) -> None:
        follower.server.say(b"x" * 200_000)
        await until(lambda: any("TooLarge" in error for error in follower.error_log))
        follower.server.put("d")

    play(story, limits=Limits(line_bytes=100_000, first_pause_s=0.01, page=3))


def test_a_list_beyond_all_bounds_is_asked_for_in_smaller_parts() -> None:
    async def story(follower: Following) -> None:
        for name in "defghij":
            follower.server.put(name, spec={"nodeName": "n" * 400})
        follower.server.say_gone()
        await until(lambda: any("TooLarge" in error for error in follower.error_log))
        await until(lambda: follower.reflector.counts["watches"] == 2)

    server = play(story, limits=Limits(answer_bytes=3000, first_pause_s=0.01, page=10))
    assert server.parts()[-1] == "2"


def test_a_list_is_read_in_parts_that_belong_together() -> None:
    async def story(follower: Following) -> None:
        for name in "defgh":
            follower.server.put(name)
        follower.server.say_gone()
        await until(lambda: follower.reflector.counts["lists"] == 2)
        await follower.settles()
        follower.server.put("i")

    assert play(story).parts() == ["3", "3", "3", "3"]


def test_a_list_that_expires_between_its_parts_is_begun_anew_in_larger_ones() -> None:
    async def story(follower: Following) -> None:
        server = follower.server
        for name in "defgh":
            server.put(name)

        def once() -> None:
            server.page_hook = lambda: None
            server.remove("a", unseen=True)
            server.forget()

        server.page_hook = once
        server.say_gone()
        await until(lambda: follower.reflector.counts["lists"] == 3)

    server = play(story)
    assert server.parts() == ["3", "3", "3", "12"]


def test_an_object_that_cannot_be_decoded_is_counted_and_the_others_go_on() -> None:
    async def story(follower: Following) -> None:
        server, reflector = follower.server, follower.reflector
        before = reflector.objects["default", "a"]
        server.put("a", spec={"nodeName": 5})
        server.put("bad", spec={"nodeName": 6})
        server.put("d")
        await until(lambda: ("default", "d") in reflector.objects)
        assert reflector.counts["undecodable"] == 2
        assert reflector.objects["default", "a"] is before
        assert ("default", "bad") not in reflector.objects
        server.say_gone()
        await until(lambda: reflector.counts["lists"] == 2)
        await follower.watches()
        assert reflector.counts["undecodable"] == 4
        assert reflector.objects["default", "a"] is before
        server.remove("bad")
        server.remove("a")  # an object that cannot be decoded can be deleted

    play(story)


@pytest.mark.parametrize("name", [lambda n: n, lambda n: f"v-{n}", lambda n: f"{n:x}"], ids=["number", "words", "hex"])
def test_versions_may_change_their_form(name: Callable[[int], str | int]) -> None:
    async def story(follower: Following) -> None:
        follower.server.name_of_version = name
        follower.server.put("d")
        follower.server.put("a")
        follower.server.remove("b")
        await follower.settles()
        follower.server.reset_watches()
        follower.server.put("e")
        await follower.settles()
        follower.server.say_gone()
        follower.server.remove("c")

    play(story)


def test_a_bookmark_moves_the_place_to_go_on_from() -> None:
    async def story(follower: Following) -> None:
        for _ in range(5):
            follower.server.bookmark()
        await until(lambda: follower.reflector.counts["events"] == 5)
        follower.server.first_kept = 18  # the pods' own versions are up to 13
        follower.server.reset_watches()
        await follower.watches()

    assert play(story).requests("list") == 1


def test_an_event_that_comes_again_is_told_once() -> None:
    async def story(follower: Following) -> None:
        follower.server.put("a")
        follower.server.repeat_history(1)
        follower.server.put("b")
        await follower.settles()
        assert len(follower.replay.told) == 3 + 2

    assert play(story).requests("list") == 1


def test_events_from_the_past_are_not_told_and_a_list_decides() -> None:
    async def story(follower: Following) -> None:
        follower.server.put("d")
        follower.server.remove("d")
        follower.server.put("a")
        follower.server.repeat_history(3)
        await until(lambda: any("Contradicts" in error for error in follower.error_log))
        follower.server.put("b")
        await follower.settles()
        assert len(follower.replay.told) == 3 + 4

    assert play(story).requests("list") == 2


def test_of_events_in_the_wrong_order_none_is_lost() -> None:
    async def story(follower: Following) -> None:
        server = follower.server
        first, second = server.put("x", unseen=True), server.put("y", unseen=True)
        for pod in (second, first):
            server.say_event("ADDED", pod)
        await follower.settles()

    assert play(story).requests("list") == 2


def test_a_bookmark_ahead_of_its_events_loses_none() -> None:
    async def story(follower: Following) -> None:
        server = follower.server
        server.say_event("BOOKMARK", {"metadata": {"resourceVersion": "1000"}})
        server.put("x")
        await follower.settles()

    assert play(story).requests("list") == 2


@pytest.mark.parametrize("kind", ["MODIFIED", "DELETED", "ADDED"])
@pytest.mark.parametrize("lost", ["uid", "name", "resourceVersion", "metadata"])
def test_half_an_object_is_not_told(kind: str, lost: str) -> None:
    async def story(follower: Following) -> None:
        pod = follower.server.put("a", unseen=True)
        metadata = {key: value for key, value in pod["metadata"].items() if lost not in (key, "metadata")}
        follower.server.say_event(kind, {"metadata": metadata, "spec": {"nodeName": "lies"}})
        await follower.settles()
        assert all(node_of(new) != "lies" for _, new in follower.replay.told)

    assert play(story).requests("list") == 2


def test_a_change_of_what_was_never_there_is_not_told() -> None:
    async def story(follower: Following) -> None:
        metadata = {"name": "never", "namespace": "default", "uid": "u", "resourceVersion": "1000"}
        follower.server.say_event("MODIFIED", {"metadata": metadata})
        await until(lambda: follower.server.requests("list") == 2)
        assert all(new is None or new.metadata.name != "never" for _, new in follower.replay.told)

    play(story)


def test_a_change_of_what_could_not_be_read_before_is_told() -> None:
    async def story(follower: Following) -> None:
        follower.server.put("x", spec={"nodeName": 3})
        await until(lambda: follower.reflector.counts["undecodable"] == 1)
        follower.server.put("x")
        await follower.settles()

    assert play(story).requests("list") == 1


@pytest.mark.parametrize("told", ["a bookmark", "nothing"])
def test_what_a_watch_never_tells_is_found_in_time(told: str) -> None:
    """Also where it is not silent."""

    async def story(follower: Following) -> None:
        server = follower.server
        server.remove("a", unseen=True)
        server.put("b", unseen=True)
        server.put("x", unseen=True)
        if told == "a bookmark":
            server.bookmark()
        await follower.settles()

    play(story, replace(PACE, again_s=0.5))


def test_a_namesake_is_told_as_a_deletion_and_a_new_object() -> None:
    async def story(follower: Following) -> None:
        follower.server.remove("a", unseen=True)
        follower.server.reset_watches()
        follower.server.put("a")
        follower.server.forget()
        await follower.settles()
        (old, none), (nothing, new) = follower.replay.told[3:]
        assert (none, nothing) == (None, None)
        assert uid_of(old) != uid_of(new)

    play(story)


def test_a_server_that_went_back_to_a_backup_is_believed() -> None:
    async def story(follower: Following) -> None:
        await follower.settles()
        server = follower.server
        pod = server.pods["default", "a"]
        server.pods["default", "a"] = pod | {"metadata": pod["metadata"] | {"resourceVersion": "3"}}
        server.say_gone()

    play(story)


def test_a_server_that_was_away_is_followed_when_it_is_back() -> None:
    async def story() -> None:
        server = ApiServer()
        server.put("a")
        async with server.serving():
            client, replay = Client(Access(host="127.0.0.1", port=server.port), QUICK), Replay()
        reflector = Reflector(client, PODS, replay, pace=PACE)
        task = asyncio.create_task(reflector.run())
        try:
            await until(lambda: reflector.counts["failures"] > 2)
            assert not reflector.synced.is_set()
            assert reflector.silence_s() == float("inf")
            async with server.serving():
                await asyncio.wait_for(reflector.synced.wait(), 20)
                assert reflector.silence_s() < 20
                assert list(reflector.objects) == [("default", "a")]
        finally:
            task.cancel()
            await asyncio.wait([task])
            await client.close()

    asyncio.run(story())


def test_a_cancelled_reflector_leaves_no_connection() -> None:
    async def story() -> None:
        server = ApiServer()
        async with following(server) as follower:
            follower.task.cancel()
            await asyncio.wait([follower.task])
            assert follower.task.cancelled()
            await until(lambda: server.watching == 0)

    asyncio.run(story())


def test_while_many_events_are_handled_others_in_the_loop_have_their_turn() -> None:
    server, order = ApiServer(), list[str]()

    def slow(old: Pod | None, new: Pod | None) -> None:
        begun = time.monotonic()
        while time.monotonic() < begun + 2 * TURN_S:
            pass
        order.append("event")

    async def others() -> None:
        while order.count("event") < 20:
            await asyncio.sleep(0)
            if order and order[-1] == "event":
                order.append("other")

    async def scenario() -> None:
        async with server.serving():
            client = Client(Access(host="127.0.0.1", port=server.port), QUICK)
            reflector = Reflector(client, PODS, slow, pace=PACE)
            task = asyncio.create_task(reflector.run())
            await until(lambda: server.watching == 1)
            for number in range(20):  # all of them in one piece
                server.put(f"p{number}")
            await asyncio.wait_for(others(), 10)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.close()

    asyncio.run(scenario())
    assert order.count("other") >= 19


def test_an_error_of_the_handler_is_not_swallowed() -> None:
    async def story() -> None:
        server = ApiServer()
        server.put("a")

        def refuse(old: Pod | None, new: Pod | None) -> None:
            raise ZeroDivisionError

        async with server.serving():
            client = Client(Access(host="127.0.0.1", port=server.port), QUICK)
            with pytest.raises(ZeroDivisionError):
                await Reflector(client, PODS, refuse, pace=PACE).run()
            await client.close()

    asyncio.run(story())


# Any sequence of changes and failures


def lose_a_deletion(server: ApiServer) -> None:
    """While nobody watches, and forgotten before anybody does."""
    if server.pods:
        namespace, name = min(server.pods)
        server.remove(name, namespace, unseen=True)
        server.forget()
        server.reset_watches()


FAULTS: dict[str, Callable[[ApiServer], None]] = {
    "end": ApiServer.end_watches,
    "reset": ApiServer.reset_watches,
    "hang": ApiServer.hang_watches,
    "forget": ApiServer.forget,
    "gone": ApiServer.say_gone,
    "lost deletion": lose_a_deletion,
    "bookmark": ApiServer.bookmark,
    "garbage": lambda server: server.say(b"garbage\n"),
    "half a line": lambda server: server.say(b'{"type": "ADD'),
    "again": lambda server: server.repeat_history(1),
    "past": lambda server: server.repeat_history(4),
    "busy": lambda server: server.refusals.append(Refusal(429, headers={"Retry-After": "0"})),
    "broken": lambda server: server.refusals.append(Refusal(500)),
    "gone in stream": lambda server: setattr(server, "gone_in_stream", True),
    "words": lambda server: setattr(server, "name_of_version", lambda n: f"v{n}"),
    "digits": lambda server: setattr(server, "name_of_version", str),
}
NAMES = st.sampled_from("abcdef")
STEPS = st.one_of(
    st.tuples(st.just("put"), NAMES),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("wait"), st.just("")),
    st.tuples(st.just("fault"), st.sampled_from(sorted(FAULTS))),
)


@pytest.mark.slow
@given(steps=st.lists(STEPS, min_size=3, max_size=25))
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_after_any_changes_and_failures_the_copy_is_right(steps: list[tuple[str, str]]) -> None:
    async def story(follower: Following) -> None:
        server = follower.server
        for step, what in steps:
            if step == "put":
                server.put(what)
            elif step == "remove" and ("default", what) in server.pods:
                server.remove(what)
            elif step == "wait":
                await asyncio.sleep(0.005)
            elif step == "fault":
                FAULTS[what](server)
        server.put("last")

    play(story, SOON_SILENT)


def lie(server: ApiServer, kind: str, name: str, **changed: object) -> None:
    """An event of a pod that is not so, by the newest version."""
    server.forget()
    known = server.pods.get(("default", name), {"metadata": {"name": name, "namespace": "default", "uid": "lie"}})
    metadata = known["metadata"] | {"resourceVersion": str(server.first_kept), **changed}
    server.say_event(kind, {"metadata": metadata, "spec": {"nodeName": "lies"}})


def keep_back(server: ApiServer, name: str) -> None:
    server.put(name, unseen=True)


LIES: dict[str, Callable[[ApiServer], None]] = {
    "deleted": lambda server: lie(server, "DELETED", "a"),
    "never there": lambda server: lie(server, "MODIFIED", "z"),
    "invented": lambda server: lie(server, "ADDED", "z"),
    "half": lambda server: lie(server, "MODIFIED", "a", uid=""),
    "another": lambda server: lie(server, "MODIFIED", "a", uid="other"),
    "older": lambda server: lie(server, "MODIFIED", "b", resourceVersion="1"),
    "ahead": lambda server: server.say_event("BOOKMARK", {"metadata": {"resourceVersion": "100000"}}),
    "wrong kind": lambda server: server.say_event(
        "ADDED", {"kind": "Node", "metadata": {"name": "n1", "uid": "n", "resourceVersion": "99"}, "spec": {}}
    ),
    "kept back": lambda server: keep_back(server, "c"),
    "again": lambda server: server.repeat_history(1),
    "past": lambda server: server.repeat_history(4),
    "silent": ApiServer.hang_watches,
}


@given(steps=st.lists(st.sampled_from([*LIES, "put a", "put b"]), min_size=1, max_size=12))
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_a_watch_pretends_the_copy_is_right_in_time(steps: list[str]) -> None:
    async def story(follower: Following) -> None:
        for step in steps:
            if step.startswith("put "):
                follower.server.put(step[-1])
            else:
                LIES[step](follower.server)
            await asyncio.sleep(0.002)

    play(story, replace(SOON_SILENT, again_s=0.2))
