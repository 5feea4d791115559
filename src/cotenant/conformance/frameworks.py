# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch, JAX, TensorFlow and vLLM in a slice: each computes something and says how much memory it sees."""

import sys
from importlib.util import find_spec

from cotenant.conformance.bench import Bench, Check, Finding, SkippedError
from cotenant.conformance.report import Way
from cotenant.conformance.running import Client, Slice

TIMEOUT_S = 300.0
SILENT = ("tensorflow",)
"""do not say how much memory they see"""
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


def _check(name: str, script: str) -> Check:
    def measure(bench: Bench, way: Way) -> Finding:
        if find_spec(name) is None:
            raise SkippedError("is not installed")
        limit = bench.device.free_mib // 2
        before = Slice(way=way, memory_mib=limit).command(bench.runner.gpu)
        command = [*before, sys.executable, "-P", "-c", _ANSWER + script]
        with Client(command, bench.runner.gpu, TIMEOUT_S) as client:
            said = client.result()["said"]
        if said == NO_GPU:
            raise SkippedError("is installed without support for this GPU")
        return said, said is None or said <= limit, f"the limit is {limit} MiB"

    sees = "" if name in SILENT else ", and sees at most its limit"
    return Check(
        name=f"framework-{name}",
        title=f"{name} computes in a slice",
        measure=measure,
        unit="MiB",
        expected=f"computes{sees}",
        needs_gpu=True,
        slow=True,
    )


FRAMEWORKS = tuple(_check(name, script) for name, script in _SCRIPTS.items())
