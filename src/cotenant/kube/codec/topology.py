# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The dialect of the GSoC 2019 topology work: whole GPUs only, preferably well linked ones."""

from collections.abc import Mapping, Sequence

from cotenant.kube.codec.dialect import Dialect, Given


def _variables(dialect: Dialect, given: Given) -> Mapping[str, str]:
    return {"NVIDIA_VISIBLE_DEVICES": given.launch.env["NVIDIA_VISIBLE_DEVICES"]}


def _annotations(dialect: Dialect, given: Sequence[Given], moment: int) -> Mapping[str, str]:
    gpus = sorted({gpu for one in given for gpu in one.gpus})
    return {
        "ALIYUN_COM_GPU_GROUP": ",".join(map(str, gpus)),
        "ALIYUN_COM_GPU_ASSIGNED": "true",
        "ALIYUN_COM_GPU_ASSUME_TIME": str(moment),
    }


TOPOLOGY = Dialect(
    name="topology",
    count="aliyun.com/gpu",
    alone=True,
    variables=_variables,
    annotations=_annotations,
)
