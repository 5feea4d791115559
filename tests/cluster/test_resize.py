# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Live resize on a real cluster, asked for by a pod's owner: processes go on with more or less, or hear why not."""

from collections.abc import Iterator
from typing import Any

import pytest

from cotenant.kube.scheduler.events import RESIZE_REFUSED, RESIZED
from cotenant.kube.scheduler.resize import RESIZE
from tests.cluster.api import wait_for
from tests.cluster.engine import T4, V100, Engine
from tests.cluster.gpus import uuid
from tests.cluster.pods import container, create_pod, path_of
from tests.cluster.tenant import REPEATS, SOURCE

OWNER, SPACE = "owner", "owned"
ON_THE_SMALL = {"cotenant.io/use-uuids": uuid(1, 2)}
HOLDING = f"""{SOURCE}
assert take(600) == 0
while True:
    tell()
    time.sleep(0.3)
"""
"""always has 600 MiB, and says what more there is"""


@pytest.fixture(scope="module")
def owner(installed: Engine) -> Iterator[str]:
    """An ordinary user, who may edit what is in one namespace; afterwards all is free again."""
    installed.cluster.add_user(OWNER, SPACE)
    yield OWNER
    installed.fits({"nvidia.com/gpu": 3}, "node1")
    installed.cluster.delete(f"/api/v1/namespaces/{SPACE}")


def start(engine: Engine, name: str, limits: dict[str, int], code: str = REPEATS, **more: Any) -> None:
    engine.create(name, limits, code, namespace=SPACE, **more)


def resize(engine: Engine, owner: str, name: str, wish: str) -> None:
    change = ("annotate", "--overwrite", "pod", name, f"{RESIZE}={wish}")
    engine.cluster.kubectl("--namespace", SPACE, *change, user=owner)


def sees(engine: Engine, name: str, container: str | None = None, **wanted: Any) -> Any:
    """What a container says once it says this."""

    def look() -> Any:
        seen = engine.said(name, container, SPACE)
        return seen if {key: seen.get(key) for key in wanted} == wanted else None

    return wait_for(f"{name} to see {wanted}", look)


def told(engine: Engine, owner: str, name: str, reason: str) -> list[str]:
    """Events of a pod, as its owner reads them."""
    which = f"--field-selector=involvedObject.name={name},reason={reason}"
    words = "--output=jsonpath={range .items[*]}{.message}{'\\n'}{end}"
    return engine.cluster.kubectl("--namespace", SPACE, "get", "events", which, words, user=owner).splitlines()


def tells(engine: Engine, owner: str, name: str, reason: str, *words: str) -> None:
    def look() -> bool:
        return any(all(word in line for word in words) for line in told(engine, owner, name, reason))

    wait_for(f"{name} to be told {reason} with {words}", look)


def test_a_process_goes_on_and_has_more_or_less(engine: Engine, owner: str) -> None:
    start(engine, "grows", {"nvidia.com/gpumem": 1000}, HOLDING, annotations=ON_THE_SMALL)
    sees(engine, "grows", free=400, total=1000, room=400)
    resize(engine, owner, "grows", "memory=3000Mi,compute=50")
    assert "compute=500" in sees(engine, "grows", free=2400, total=3000, room=2400)["limits"]
    tells(engine, owner, "grows", RESIZED, "3000 MiB", "50% compute")
    resize(engine, owner, "grows", "memory=500Mi")  # less than it holds: that stays, and it gets nothing more
    assert "compute=500" in sees(engine, "grows", free=0, total=500, room=0)["limits"]
    tells(engine, owner, "grows", RESIZED, "500 MiB", "50% compute")
    resize(engine, owner, "grows", "memory=10%")
    tenth = T4.memory_mib // 10
    sees(engine, "grows", free=tenth - 600, total=tenth, room=tenth - 600)
    (status,) = engine.started("grows", SPACE)["status"]["containerStatuses"]
    assert status["restartCount"] == 0


def test_one_of_several_containers_is_resized_on_all_its_cards(engine: Engine, owner: str) -> None:
    pair = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1000}
    create_pod(
        engine.cluster,
        "many",
        container("one", REPEATS, pair),
        container("two", REPEATS, pair),
        container("plain", REPEATS),
        namespace=SPACE,
        initContainers=[{**container("beside", REPEATS, {"nvidia.com/gpumem": 100}), "restartPolicy": "Always"}],
    )
    for name in ("one", "two"):
        sees(engine, "many", name, totals=[1000, 1000])
    resize(engine, owner, "many", '{"two": {"memory": "2Gi"}, "beside": {"memory": 200}}')
    after = sees(engine, "many", "two", totals=[2048, 2048])
    assert [one["room"] for one in after["rooms"]] == [2048, 2048]
    sees(engine, "many", "beside", room=200)
    resize(engine, owner, "many", '{"plain": {"memory": "2Gi"}}')
    tells(engine, owner, "many", RESIZE_REFUSED, "has no GPU")
    assert engine.said("many", "one", SPACE)["totals"] == [1000, 1000]


def test_more_than_there_is_is_refused_in_numbers_until_there_is(engine: Engine, owner: str) -> None:
    half = T4.memory_mib // 2
    start(engine, "first", {"nvidia.com/gpumem": half}, annotations=ON_THE_SMALL)
    start(engine, "second", {"nvidia.com/gpumem": half}, annotations=ON_THE_SMALL)
    for name in ("first", "second"):
        sees(engine, name, room=half)
    resize(engine, owner, "first", f"memory={half + 1000}")
    tells(engine, owner, "first", RESIZE_REFUSED, f"needs {half + 1000} MiB on GPU {uuid(1, 2)}", f"can have {half}")
    resize(engine, owner, "first", "memory=lots")
    tells(engine, owner, "first", RESIZE_REFUSED, "'lots'")
    resize(engine, owner, "first", f"memory={half + 2000}")
    tells(engine, owner, "first", RESIZE_REFUSED, f"needs {half + 2000} MiB")
    assert engine.said("first", namespace=SPACE)["room"] == half
    start(engine, "third", {"nvidia.com/gpumem": half - 3000}, annotations=ON_THE_SMALL)
    engine.waits("third", SPACE)
    resize(engine, owner, "second", "memory=1000")
    sees(engine, "second", room=1000)
    sees(engine, "first", room=half + 2000)
    sees(engine, "third", room=half - 3000)
    resize(engine, owner, "first", f"memory={half + 2001}")
    tells(engine, owner, "first", RESIZE_REFUSED, f"needs {half + 2001} MiB", f"can have {half + 2000}")


def test_a_quota_of_the_namespace_holds_for_resizes(engine: Engine, owner: str) -> None:
    quotas = f"/api/v1/namespaces/{SPACE}/resourcequotas"
    engine.cluster.post(quotas, {"metadata": {"name": "most"}, "spec": {"hard": {"requests.nvidia.com/gpumem": 2500}}})
    try:
        wait_for("the quota", lambda: engine.cluster.get(f"{quotas}/most").get("status", {}).get("used"))
        start(engine, "pair", {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1000})
        sees(engine, "pair", totals=[1000, 1000])
        resize(engine, owner, "pair", "memory=1251")
        tells(engine, owner, "pair", RESIZE_REFUSED, "needs 2502 MiB", "quota most leaves its namespace 2500")
        assert engine.said("pair", namespace=SPACE)["totals"] == [1000, 1000]
        resize(engine, owner, "pair", "memory=1250")
        sees(engine, "pair", totals=[1250, 1250])
    finally:
        engine.cluster.delete(f"{quotas}/most")


def test_what_was_resized_stays_so_when_container_and_scheduler_are_started_again(engine: Engine, owner: str) -> None:
    early = {RESIZE: "memory=700"}
    start(engine, "lasts", {"nvidia.com/gpumem": 1000}, restartPolicy="Always")
    start(engine, "early", {"nvidia.com/gpumem": 1000}, annotations=early)  # asked for before it was placed
    before = sees(engine, "lasts", room=1000)
    resize(engine, owner, "lasts", "memory=2000")
    assert sees(engine, "lasts", room=2000)["variables"] == before["variables"]
    sees(engine, "early", room=700)
    tells(engine, owner, "lasts", RESIZED, "2000 MiB")
    engine.kill("while True:")
    after = sees(engine, "lasts", room=2000, variables={**before["variables"], "CUDA_DEVICE_MEMORY_LIMIT_0": "2000m"})
    lasts = path_of("lasts", SPACE)
    wait_for(
        "the restart to be told", lambda: engine.cluster.get(lasts)["status"]["containerStatuses"][0]["restartCount"]
    )
    engine.restart_scheduler()
    large = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": V100.memory_mib - 1999}
    engine.create("beside", large, annotations={"nvidia.com/use-gpuuuid": after["gpus"][0]})
    engine.waits("beside")
    assert len(told(engine, owner, "lasts", RESIZED)) == 1
    assert not told(engine, owner, "lasts", RESIZE_REFUSED)
