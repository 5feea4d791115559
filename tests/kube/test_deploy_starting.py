# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The start of a model server: a real shell runs the script, and `printf` stands in for the server."""

import subprocess
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.kube.codec.paths import LIBRARY_FOLDER
from cotenant.kube.deploy.starting import SHARE, TENSORFLOW, TOTAL, TRITON, VLLM, start_command

ECHO = ["printf", "%s\\n"]
FRACTION = "--per_process_gpu_memory_fraction="
MOST = (1 << 20) - 1


def started(
    script: str, variables: dict[str, str], *words: str, model: str = "/", preload: str = "/no/such/file"
) -> subprocess.CompletedProcess[str]:
    command = start_command(script, model, [*ECHO, *words], preload)
    return subprocess.run(command, env={"PATH": "/usr/bin:/bin", **variables}, capture_output=True, text=True)


def options(script: str, share: int, total: int, *words: str, preload: str = "/no/such/file") -> list[str]:
    done = started(script, {SHARE: str(share), TOTAL: str(total)}, *words, preload=preload)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@settings(max_examples=50)
@given(st.integers(1, MOST).flatmap(lambda total: st.tuples(st.integers(1, total), st.just(total))))
def test_the_fraction_is_positive_and_never_above_the_share(amounts: tuple[int, int]) -> None:
    share, total = amounts
    (option,) = options(TENSORFLOW, share, total)
    fraction = Fraction(option.removeprefix(FRACTION))
    assert fraction > 0
    assert fraction * total <= share


@pytest.mark.parametrize(("share", "total", "text"), [(3072, 15360, "0.190000000"), (1, MOST, "0.000000905")])
def test_the_fraction_is_the_part_of_the_gpu(share: int, total: int, text: str) -> None:
    assert options(TENSORFLOW, share, total) == [FRACTION + text]


def test_the_fraction_is_of_the_slice_if_the_library_shows_only_that(tmp_path: Path) -> None:
    preload = tmp_path / "ld.so.preload"
    preload.write_text(f"{LIBRARY_FOLDER}/libcotenant.so")
    assert options(TENSORFLOW, 3072, 15360, preload=str(preload)) == [FRACTION + "0.950000000"]
    preload.write_text("/usr/lib/libother.so\n")
    assert options(TENSORFLOW, 3072, 15360, preload=str(preload)) == [FRACTION + "0.190000000"]


@pytest.mark.parametrize(("share", "mib"), [(4, 1), (1024, 128), (80_000, 256)])
def test_the_pool_of_triton_is_a_part_of_the_share(share: int, mib: int) -> None:
    first, second = options(TRITON, share, 81_920)
    assert first == f"--cuda-memory-pool-byte-size=0:{mib << 20}"
    assert second.startswith("--backend-config=tensorflow,gpu-memory-fraction=0.")


def test_vllm_gets_its_part_of_the_memory_and_is_started_by_the_reporter_only_if_that_is_there() -> None:
    # Without the job library in the container, as here, the server starts all the same.
    for metrics in ("", "http://127.0.0.1:8000/metrics"):
        command = start_command(VLLM, "", [metrics, *ECHO, "a b"], "/no/such/file")
        variables = {"PATH": "/usr/bin:/bin", SHARE: "3072", TOTAL: "15360"}
        done = subprocess.run(command, env=variables, capture_output=True, text=True)
        assert done.stdout.splitlines() == ["a b", "--gpu-memory-utilization=0.190000000"]


def test_words_of_the_user_reach_the_server_unchanged() -> None:
    words = ["$(id)", "`id`", "a b", '"', "'", "; exit 3", "*"]
    assert options(TENSORFLOW, 1, 2, *words)[:-1] == words


@pytest.mark.parametrize(
    "given", [{}, {SHARE: "3072"}, {SHARE: "", TOTAL: "1"}, {SHARE: "0", TOTAL: "9"}, {SHARE: "x", TOTAL: "9"}]
)
def test_a_container_without_an_assignment_does_not_start(given: dict[str, str]) -> None:
    done = started(TENSORFLOW, given)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the pod has no assigned GPU memory" in done.stderr


def test_a_model_path_that_does_not_exist_is_named() -> None:
    amounts = {SHARE: "1", TOTAL: "2"}
    done = started(TENSORFLOW, amounts, model="/no/such/model")
    assert done.returncode == 2
    assert done.stderr == "cotenant: the model path /no/such/model does not exist in the container\n"
    assert started(TENSORFLOW, amounts, model="s3://bucket/model").returncode == 0
