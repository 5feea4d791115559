# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How a model server starts inside its container: its memory options follow from the assignment, which is known there.

The images of model servers have a shell and no Python, so the start is a fixed shell script. Nothing of a user is part
of its text: the program and its options are arguments, which the script passes on unchanged. It uses no command outside
of the shell.
"""

from collections.abc import Sequence

from cotenant.kube.codec.paths import JOB_FOLDER, LIBRARY_FOLDER, PRELOAD_FILE

SHARE, TOTAL = "ALIYUN_COM_GPU_MEM_CONTAINER", "ALIYUN_COM_GPU_MEM_DEV"
"""Variables of the assignment, both in MiB: the container's memory on its GPU, and that of the GPU."""
POOL_PERCENT = 95
"""Part of the container's memory that a server may take for its pool; CUDA itself needs the rest."""
LARGEST_TRITON_POOL_MIB = 256
"""Triton keeps its pool of device memory for tensors between models from the start on, used or not."""

VLLM_HISTOGRAM = "vllm:time_to_first_token_seconds"
"""What a latency objective of vLLM is about."""

# `total` becomes the memory that the server will see. The vGPU library reports the slice instead of the GPU, so a
# fraction of the GPU would be taken a second time if the library is preloaded.
#
# The fraction has nine decimals, rounded down: of a GPU of less than 1 TiB, 1 MiB is still more than 0, which
# TensorFlow would read as no limit.
_BEGIN = f"""set -eu
fail() {{
    printf 'cotenant: %s\\n' "$1" >&2
    exit 2
}}
preload=$1 model=$2
shift 2
share=${{{SHARE}:-}} total=${{{TOTAL}:-}}
case "$share,$total" in
    *[!0-9,]* | ,* | *, | 0,* | *,0)
        fail 'the pod has no assigned GPU memory: {SHARE} and {TOTAL} are not set. Is cotenant installed?' ;;
esac
case "$model" in
    *://* | '') ;;
    *) [ -e "$model" ] || fail "the model path $model does not exist in the container" ;;
esac
if [ -r "$preload" ]; then
    while read -r line || [ -n "$line" ]; do
        case "$line" in *{LIBRARY_FOLDER}/*) total=$share ;; esac
    done < "$preload"
fi
parts=$((share * {POOL_PERCENT} * 10000000 / total))
[ "$parts" -gt 0 ] || parts=1
fraction=$(printf '0.%09d' "$parts")
"""

TENSORFLOW = f'{_BEGIN}exec "$@" "--per_process_gpu_memory_fraction=$fraction"\n'

TRITON = f"""{_BEGIN}pool=$((share / 8))
[ "$pool" -le {LARGEST_TRITON_POOL_MIB} ] || pool={LARGEST_TRITON_POOL_MIB}
[ "$pool" -gt 0 ] || pool=1
set -- "$@" "--cuda-memory-pool-byte-size=0:$((pool * 1048576))"
exec "$@" "--backend-config=tensorflow,gpu-memory-fraction=$fraction"
"""

# The first word is the address of the server's metrics, or empty: then its latencies are not reported.
VLLM = f"""{_BEGIN}metrics=$1
shift
set -- "$@" "--gpu-memory-utilization=$fraction"
if [ -n "$metrics" ] && [ -r {JOB_FOLDER}/cotenant/job/server.py ]; then
    set -- python3 -m cotenant.job.server --metrics "$metrics" --histogram {VLLM_HISTOGRAM} -- "$@"
    export PYTHONPATH="{JOB_FOLDER}${{PYTHONPATH:+:$PYTHONPATH}}"
fi
exec "$@"
"""


def start_command(script: str, model: str, program: Sequence[str], preload: str = str(PRELOAD_FILE)) -> list[str]:
    """Return the command of a container: check the model path, compute the memory options, run the program."""
    return ["sh", "-c", script, "cotenant-serve", preload, model, *program]
