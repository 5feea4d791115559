# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs that selectors select: evaluated once for GPUs that are alike, within budgets."""

from dataclasses import replace
from unittest.mock import patch

import msgspec
import pytest

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.kube.api.claims import DeviceClaim
from cotenant.kube.codec import selecting
from cotenant.kube.codec.cel.parser import Expression
from cotenant.kube.codec.claim_requests import WHOLE, Surroundings, read_claim
from cotenant.kube.codec.claims import DRIVER
from cotenant.kube.codec.devices import attributes_of
from cotenant.kube.codec.selecting import Fleet
from cotenant.node.devices.vendors import Vendor

IS_T4 = f"device.attributes['{DRIVER}'].type == 'T4'"


def machine(name: str, gpu_type: str = "T4", gpus: int = 2) -> Machine:
    made = (Gpu(uuid=f"GPU-{name}-{index}", type=gpu_type, memory=MiB(16_000)) for index in range(gpus))
    return Machine(name=name, gpus=tuple(made))


def fleet(*machines: Machine, before: Fleet | None = None) -> Fleet:
    return Fleet([(one, Vendor.NVIDIA) for one in machines], DRIVER, attributes_of, before)


def test_gpus_that_are_alike_are_evaluated_once_also_after_a_node_changed() -> None:
    n1, n2 = machine("n1"), machine("n2", "A100")
    with patch.object(Expression, "evaluate", autospec=True, side_effect=Expression.evaluate) as evaluated:
        first = fleet(n1, n2)
        assert first.selected((IS_T4,)).by_node == {"n1": {"GPU-n1-0", "GPU-n1-1"}}
        assert evaluated.call_count == 2  # one for each type
        second = fleet(n1, machine("n3"), before=first)
        assert second.selected((IS_T4,)).uuids == {"GPU-n1-0", "GPU-n1-1", "GPU-n3-0", "GPU-n3-1"}
        assert second.selected((IS_T4,)).every
        assert evaluated.call_count == 2
        third = fleet(machine("n1", "H100"), before=second)
        with pytest.raises(InputError, match="none of the 2 GPUs satisfies it"):
            third.selected((IS_T4,))
        assert evaluated.call_count == 3


@pytest.mark.parametrize(
    "text",
    [
        "has(OWN.numaNode)",
        "'numaNode' in OWN",
        "'numa' + 'Node' in OWN",
        "OWN[?'numaNode'].hasValue()",
        "OWN.?numaNode.orValue(7) == 1",
        "OWN.numaNode == 1",
        "OWN['numa' + 'Node'] == 1",
        "OWN.exists(name, name == 'numaNode')",
        "OWN.map(name, name).size() == COUNT",
        "size(OWN) == COUNT",
        "OWN.size() == COUNT",
        "OWN != {} && cel.bind(own, OWN, has(own.numaNode))",
        "[OWN][0].map(name, OWN[name] == 1 && name == 'numaNode').exists(x, x)",
        "OWN.index == 9 ? false : 'numaNode' in OWN",
    ],
)
def test_gpus_are_alike_only_if_they_agree_in_what_was_read(text: str) -> None:
    alike = [Gpu(uuid=f"GPU-{number}", type="T4", memory=MiB(16_000)) for number in range(3)]
    gpus = (*alike[:2], replace(alike[2], numa=1))
    node = Machine(name="n", gpus=gpus)
    count = len(attributes_of(node, Vendor.NVIDIA)[2])
    own = text.replace("OWN", f"device.attributes['{DRIVER}']").replace("COUNT", str(count))
    assert fleet(node).selected((own,)).uuids == {"GPU-2"}
    assert fleet(Machine(name="n", gpus=gpus[::-1])).selected((own,)).uuids == {"GPU-2"}


def test_answers_about_gpus_that_are_gone_are_forgotten() -> None:
    by_uuid = f"device.attributes['{DRIVER}'].uuid.startsWith('GPU-')"
    known = fleet(machine("n0"))
    for number in range(1, 20):
        known = fleet(machine(f"n{number}"), before=known)
        known.selected((by_uuid,))
    assert len(known._answers[by_uuid].known) <= 6


def test_a_selector_has_a_budget_for_a_gpu_and_one_for_all() -> None:
    endless = (
        "[1,2,3,4,5,6,7,8].all(a, [1,2,3,4,5,6,7,8].all(b, [1,2,3,4,5,6,7,8].all(c, [1,2,3,4,5,6,7,8].all(d, d > 0))))"
    )
    with pytest.raises(InputError, match="too many steps"):
        fleet(machine("n1")).selected((endless,))
    many = fleet(machine("n1", gpus=64))
    each = f"'{'a' * 200}'.matches('.*x') || device.attributes['{DRIVER}'].uuid != ''"
    assert many.selected((each,)).every
    with (
        patch.object(selecting, "STEPS", 20_000),
        patch.object(selecting, "STEPS_PER_GPU", 0),
        pytest.raises(InputError, match="too many steps"),
    ):
        fleet(machine("n1", gpus=64)).selected((each,))


def test_all_selectors_of_a_claim_have_one_budget_and_leave_those_of_other_claims_alone() -> None:
    devices = fleet(machine("n1", gpus=64))
    each = [f"'{'a' * 200}'.matches('.*{x}') || device.attributes['{DRIVER}'].uuid != ''" for x in "uvwxyz"]
    with patch.object(selecting, "STEPS", 100_000), patch.object(selecting, "STEPS_PER_GPU", 0):
        devices.begin_claim()
        with pytest.raises(InputError, match="the selectors of the claim take too many steps"):
            [devices.selected((text,)) for text in each]  # of several requests
        most = devices.steps
        with pytest.raises(InputError, match="take too many steps"):  # of an alternative
            devices.selected((IS_T4,))
        assert devices.steps <= most + 32
        devices.begin_claim()
        assert devices.selected((IS_T4,)).every


def test_constraints_and_known_answers_take_steps_of_the_same_budget() -> None:
    devices = fleet(machine("n1", gpus=64))
    pair = [{"matchAttribute": f"{DRIVER}/uuid", "requests": ["r0"]}] * 32
    exact = {"deviceClassName": WHOLE}
    requests = [{"name": f"r{number}", "exactly": exact} for number in range(32)]
    claim = msgspec.convert({"requests": requests, "constraints": pair}, DeviceClaim)
    around = Surroundings(lambda name: None, lambda: devices)
    with patch.object(selecting, "STEPS", 500), patch.object(selecting, "STEPS_PER_GPU", 0):
        devices.begin_claim()
        with pytest.raises(InputError, match="its selectors and constraints take too many steps"):
            read_claim(claim, around)
        assert devices.steps < 1000
        devices.begin_claim()
        with pytest.raises(InputError, match="take too many steps"):
            [devices.selected((f"device.driver == '{DRIVER}' || {number} > 0",)) for number in range(16)]


def test_to_parse_takes_steps_too() -> None:
    devices = fleet(machine("n1"))
    before = devices.steps
    assert devices.selected((f"true || '{'a' * 5000}' == ''",)).every
    assert devices.steps - before > 5000


def test_an_error_is_told_each_time() -> None:
    devices, lengths = fleet(machine("n1")), []
    for _ in range(3):
        with pytest.raises(InputError, match=r"none of the 2 GPUs satisfies it: there is no absent") as raised:
            devices.selected((f"device.attributes['{DRIVER}'].absent == 1",))
        lengths.append(len(raised.traceback))
    assert len(set(lengths)) == 1  # what is kept does not grow
