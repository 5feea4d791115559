# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch, JAX, TensorFlow and vLLM in a slice: each computes something and says how much memory it sees."""

import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from cotenant.conformance.checks import Bench
from cotenant.conformance.report import Result, Row, Rung
from cotenant.conformance.running import Client, ClientError, Slice

CHECK = "framework-{}"
TIMEOUT_S = 300.0
NO_GPU = "no GPU"
"""the answer of a framework that was built without CUDA"""

_SCRIPTS = {
    "torch": """
import torch
if not torch.cuda.is_available():
    answer("no GPU")
x = torch.ones(512, 512, device="cuda")
assert float((x @ x).sum()) == 512.0**3
answer(torch.cuda.mem_get_info()[1] >> 20)
""",
    "jax": """
import jax, jax.numpy as jnp
if jax.default_backend() != "gpu":
    answer("no GPU")
x = jnp.ones((512, 512))
assert float((x @ x).sum()) == 512.0**3
answer(jax.devices()[0].memory_stats()["bytes_limit"] >> 20)
""",
    "tensorflow": """
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
if not gpus:
    answer("no GPU")
tf.config.experimental.set_memory_growth(gpus[0], True)
x = tf.ones((512, 512))
assert float(tf.reduce_sum(x @ x)) == 512.0**3
answer(None)
""",
    "vllm": """
from vllm.platforms import current_platform
if not current_platform.is_cuda():
    answer("no GPU")
answer(current_platform.get_device_total_memory() >> 20)
""",
}
_ANSWER = """
import json, sys
def answer(said):
    print(json.dumps({"said": said}), flush=True)
    sys.exit()
"""


def framework_rows(bench: Bench, rungs: Sequence[Rung]) -> Iterator[Row]:
    """One row for each framework and rung."""
    for name, script in _SCRIPTS.items():
        for rung in rungs:
            result, value, note = _tried(bench, rung, name, script)
            yield Row(
                check=CHECK.format(name),
                rung=rung,
                result=result,
                device=bench.device.title,
                value=value,
                unit="" if value is None else "MiB",
                expected="computes, and sees at most its limit",
                note=note,
            )


def _tried(bench: Bench, rung: Rung, name: str, script: str) -> tuple[Result, float | None, str]:
    if find_spec(name) is None:
        return Result.SKIPPED, None, "is not installed"
    if bench.device.stand_in:
        return Result.SKIPPED, None, "the stand-in computes nothing"
    limit = bench.device.free_mib // 2
    command = [
        *Slice(rung=rung, memory_mib=limit).command(bench.runner.gpu),
        sys.executable,
        "-P",
        "-c",
        _ANSWER + script,
    ]
    try:
        with Client(command, bench.runner.gpu) as client:
            said = client.result(TIMEOUT_S)["said"]
    except ClientError as error:
        return Result.FAILED, None, str(error)
    if said == NO_GPU:
        return Result.SKIPPED, None, "is installed without support for this GPU"
    is_kept = said is None or said <= limit
    return (Result.PASSED if is_kept else Result.FAILED), said, f"the limit is {limit} MiB"
