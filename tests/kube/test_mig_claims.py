# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Claims to MIG instances: a class for them, and selectors for their profile."""

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB, MilliGpu
from cotenant.kube.codec.claim_requests import MIG
from cotenant.kube.codec.claim_templates import template_of
from cotenant.kube.codec.claims import DRIVER, SHARED, WHOLE, device_name
from cotenant.kube.codec.device_classes import IMPLICIT
from cotenant.kube.codec.inventory import INVENTORY, inventory_for
from cotenant.node.devices.vendors import Vendor
from tests.kube.control_plane import ControlPlane, play, until
from tests.kube.reviews import admitted, written
from tests.kube.test_claims import CLAIMS, add_claim, add_claim_for
from tests.kube.test_claims_conversion import CONVERT
from tests.kube.test_claims_in_full import add_user, claim_of, decided, exactly, record, results, share, waits

SMALL, LARGE = "1g.10gb", "3g.40gb"
PROFILE = f'device.attributes["{DRIVER}"].migProfile'
INSTANCES = (
    ("MIG-small-0", SMALL, 10_240, 143),
    ("MIG-small-1", SMALL, 10_240, 143),
    ("MIG-large", LARGE, 40_960, 429),
)
PARTS = Machine(
    name="parts",
    gpus=(
        *(
            Gpu(uuid=uuid, type="A100", memory=MiB(memory), mig=profile, card="GPU-x", part=MilliGpu(part))
            for uuid, profile, memory, part in INSTANCES
        ),
        Gpu(uuid="GPU-y", type="A100", memory=MiB(81_920)),
    ),
)


async def with_instances(plane: ControlPlane) -> None:
    plane.server.nodes.merge("parts", {"metadata": {"annotations": {INVENTORY: inventory_for(PARTS, Vendor.NVIDIA)}}})
    await until(lambda: plane.scheduler.state.vendors)


def test_the_class_of_mig_gives_an_instance_of_the_selected_profile_to_itself() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_instances(plane)
        add_claim(server, "large", claim_of(exactly("gpu", MIG, f'{PROFILE} == "{LARGE}"')))
        add_claim(server, "whole", claim_of(exactly("gpu", WHOLE)))
        for name in ("large", "whole"):
            add_user(server, name, [name])
        await decided(server, "large", "whole")
        assert results(server, "large") == [("gpu", device_name("MIG-large"))]
        assert results(server, "whole") == [("gpu", device_name("GPU-y"))]
        (share_of_large,) = record(server, "large").held_by(0)
        assert share_of_large.memory == 40_960
        for number in range(2):
            add_claim(server, f"any{number}", claim_of(exactly("gpu", MIG)))
            add_user(server, f"any{number}", [f"any{number}"])
        await decided(server, "any0", "any1")
        assert {results(server, f"any{number}")[0][1] for number in range(2)} == {"mig-small-0", "mig-small-1"}
        add_claim(server, "more", claim_of(exactly("gpu", MIG)))
        add_user(server, "more", ["more"])
        await waits(plane, "more", "needs 1 GPU that no other job uses")

    play(story, CLAIMS)


def test_an_instance_takes_no_amounts_and_a_share_may_be_on_one() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_instances(plane)
        add_claim(server, "wrong", claim_of(exactly("gpu", MIG), gpu=share("4Gi")))
        add_user(server, "wrong", ["wrong"])
        await waits(plane, "wrong", "is for whole MIG instances")
        add_claim(server, "part", claim_of(exactly("gpu", SHARED, f'{PROFILE} == "{SMALL}"'), gpu=share("4Gi")))
        add_user(server, "part", ["part"])
        await decided(server, "part")
        assert results(server, "part")[0][1] in ("mig-small-0", "mig-small-1")

    play(story, CLAIMS)


def test_a_pod_of_a_mig_class_by_a_resource_gets_an_instance() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_instances(plane)
        new = admitted(written({f"{IMPLICIT}{MIG}": 1}), CONVERT)
        made = template_of(new["spec"]["resourceClaims"][0]["resourceClaimTemplateName"])
        assert made is not None
        new["metadata"] |= {"name": "one", "uid": "uid-one", "namespace": "team"}
        server.merge("one", new, "team")
        add_claim_for(server, "one", "one", made["spec"]["spec"])
        await decided(server, "one")
        assert results(server, "one")[0][1].startswith("mig-small")

    play(story, CONVERT)
