# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The messages are those of the .proto files, and speak as kubelet does."""

from cotenant.kube.agent.proto import deviceplugin_pb2, podresources_pb2
from tests.kube.agent.generate import FOLDER, SOURCES, generated


def test_the_generated_files_are_those_of_the_proto_files() -> None:
    there = {path.name: path.read_text() for path in (SOURCES / FOLDER).glob("*_pb2.py*")}
    assert there == generated(), "run `python -m tests.kube.agent.generate`"


def test_services_have_kubelets_names() -> None:
    files = (deviceplugin_pb2.DESCRIPTOR, podresources_pb2.DESCRIPTOR)
    services = {
        service.full_name: list(service.methods_by_name) for file in files for service in file.services_by_name.values()
    }
    assert services == {
        "v1beta1.Registration": ["Register"],
        "v1beta1.DevicePlugin": [
            "GetDevicePluginOptions",
            "ListAndWatch",
            "GetPreferredAllocation",
            "Allocate",
            "PreStartContainer",
        ],
        "v1.PodResourcesLister": ["List"],
    }


def test_an_answer_has_the_bytes_that_kubelet_reads() -> None:
    mount = deviceplugin_pb2.Mount(container_path="/c", host_path="/h", read_only=True)
    answer = deviceplugin_pb2.ContainerAllocateResponse(
        envs={"A": "b"}, mounts=[mount], cdi_devices=[deviceplugin_pb2.CDIDevice(name="v/c=d")]
    )
    assert answer.SerializeToString() == (
        b"\x0a\x06\x0a\x01A\x12\x01b"  # 1: the variable
        b"\x12\x0a\x0a\x02/c\x12\x02/h\x18\x01"  # 2: the mount
        b"\x2a\x07\x0a\x05v/c=d"  # 5: the CDI device
    )
