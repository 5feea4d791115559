# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The table of tasks: their sizes, and what a scheduler should know of each. It does not import JAX."""

from dataclasses import dataclass
from enum import StrEnum

from cotenant.core.units import MiB, MilliGpu
from cotenant.errors import InputError


class Folder(StrEnum):
    """What a task can read from a folder of real data."""

    CIFAR = "cifar"
    """CIFAR-10, binary version"""
    TEXT = "text"
    """any text"""


SIZES = ("tiny", "small", "full")
MODES = ("train", "infer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size of a task. Batch sizes are powers of two, because each batch size must be compiled."""

    batch: int
    smallest: int
    largest: int
    wait_us: float
    """microseconds of waiting for each sample of input, outside the step"""
    memory: MiB
    """memory of training that does not depend on the batch: weights, optimiser, gradients, compiled code"""
    memory_per_sample_kib: int
    steps: int
    """of one run, by default"""
    epoch: int
    """steps after which a new batch size is used"""
    infer_batch: int | None = None
    """batch size of inference; None: the same as `batch`"""

    def memory_at(self, batch: int) -> MiB:
        """The memory that a job of this batch size should request."""
        return MiB(self.memory + -(-batch * self.memory_per_sample_kib // 1024))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A benchmark task."""

    name: str
    family: str
    """module of `families` that builds it"""
    title: str
    suite: str
    """`iadeep` or `ai-benchmark`"""
    busy: MilliGpu
    """fraction of its time that the tiny size spends in steps, alone and at its default batch size"""
    sizes: dict[str, Size]
    folder: Folder | None = None
    """what it can read; None: it only uses synthetic samples"""

    def at(self, size: str) -> Size:
        """One of its sizes."""
        if size not in self.sizes:
            raise InputError(f"no size named {size!r}; there are {', '.join(self.sizes)}")
        return self.sizes[size]


def find(name: str) -> Task:
    """The task of this name."""
    try:
        return TASKS[name]
    except KeyError:
        raise InputError(f"no task named {name!r}; there are {', '.join(TASKS)}") from None


def _size(
    batch: int,
    span: tuple[int, int],
    wait_us: float,
    memory: int,
    kib: int,
    steps: int,
    epoch: int = 25,
    infer: int = 0,
) -> Size:
    return Size(
        batch=batch,
        smallest=span[0],
        largest=span[1],
        wait_us=wait_us,
        memory=MiB(memory),
        memory_per_sample_kib=kib,
        steps=steps,
        epoch=epoch,
        infer_batch=infer or None,
    )


def _task(
    name: str,
    family: str,
    title: str,
    suite: str,
    busy: int,
    tiny: Size,
    small: Size,
    full: Size,
    folder: Folder | None = None,
) -> Task:
    sizes = {"tiny": tiny, "small": small, "full": full}
    return Task(name=name, family=family, title=title, suite=suite, busy=MilliGpu(busy), sizes=sizes, folder=folder)


# The waits of tiny tasks are chosen so that each is busy for its fraction `busy`, on one core of the machine on which
# they were measured (docs/reference/workloads.md). The waits of larger sizes are scaled by the arithmetic of a sample,
# for a processor of 10 Gflop/s (small) and a GPU of 5 Tflop/s (full).
_ALL = (
    _task(
        "vgg16", "vgg", "VGG-16 on 32 x 32 images", "iadeep", 800,
        _size(32, (8, 256), 80, 256, 50, 800),
        _size(32, (8, 256), 2500, 320, 1300, 200),
        _size(256, (32, 1024), 75, 512, 5100, 2000, 200),
        Folder.CIFAR,
    ),
    _task(
        "resnet50", "resnet", "ResNet-50 on 32 x 32 images", "iadeep", 700,
        _size(8, (4, 128), 450, 320, 300, 800),
        _size(32, (8, 256), 10000, 320, 5600, 100),
        _size(512, (64, 1024), 650, 640, 49200, 2000, 200),
        Folder.CIFAR,
    ),
    _task(
        "squeezenet", "squeezenet", "SqueezeNet on 32 x 32 images", "iadeep", 500,
        _size(16, (4, 128), 300, 256, 300, 1000),
        _size(32, (8, 256), 4800, 320, 2400, 200),
        _size(512, (64, 1024), 60, 384, 6000, 2000, 200),
        Folder.CIFAR,
    ),
    _task(
        "neumf", "neumf", "NeuMF recommender", "iadeep", 200,
        _size(256, (64, 4096), 30, 192, 2, 1000, 50),
        _size(512, (64, 16384), 40, 320, 4, 1000, 50),
        _size(1024, (256, 65536), 1, 768, 6, 20000, 500),
    ),
    _task(
        "lstm", "recurrent", "LSTM language model over characters", "iadeep", 600,
        _size(16, (4, 128), 530, 192, 250, 450),
        _size(32, (8, 256), 4700, 256, 600, 200),
        _size(256, (32, 1024), 7, 384, 700, 5000, 200),
        Folder.TEXT,
    ),
    _task(
        "adgcl", "contrastive", "graph contrastive learning (AD-GCL)", "iadeep", 350,
        _size(32, (8, 256), 300, 256, 100, 700),
        _size(32, (8, 256), 7000, 256, 700, 200),
        _size(32, (8, 512), 260, 384, 4700, 5000, 200),
    ),
    _task(
        "bert", "bert", "BERT fine-tuned to classify", "iadeep", 1000,
        _size(16, (4, 128), 0, 192, 180, 1100),
        _size(16, (4, 128), 0, 384, 2500, 200),
        _size(8, (2, 64), 0, 2048, 107000, 5000, 100),
    ),
    _task(
        "yolo", "yolo", "YOLO-style detector", "iadeep", 400,
        _size(16, (4, 128), 450, 256, 200, 800),
        _size(16, (4, 128), 15000, 320, 2600, 200),
        _size(32, (4, 128), 10000, 512, 269000, 3000, 100),
    ),
    _task(
        "resnet_v2_50", "resnet", "ResNet-V2-50", "ai-benchmark", 850,
        _size(8, (4, 128), 330, 320, 300, 550),
        _size(8, (4, 128), 1100, 320, 1700, 200),
        _size(16, (2, 64), 2100, 640, 392000, 1000, 50, infer=32),
    ),
    _task(
        "resnet_v2_152", "resnet", "ResNet-V2-152", "ai-benchmark", 1000,
        _size(8, (4, 128), 0, 320, 400, 500),
        _size(8, (4, 128), 0, 384, 3100, 100),
        _size(8, (2, 64), 0, 1280, 444000, 1000, 50),
    ),
    _task(
        "vgg16_ai", "vgg", "VGG-16", "ai-benchmark", 650,
        _size(32, (8, 256), 200, 256, 110, 540),
        _size(16, (4, 128), 24000, 384, 5100, 100),
        _size(2, (1, 64), 9700, 2304, 243000, 1000, 50, infer=16),
    ),
    _task(
        "deeplab", "deeplab", "DeepLab segmentation", "ai-benchmark", 450,
        _size(16, (4, 128), 530, 384, 210, 650),
        _size(8, (2, 64), 56000, 384, 5300, 100),
        _size(1, (1, 16), 35000, 1024, 534000, 1000, 50, infer=2),
    ),
    _task(
        "lstm_ai", "recurrent", "LSTM classifier of sequences", "ai-benchmark", 300,
        _size(16, (4, 128), 1850, 192, 400, 240),
        _size(8, (2, 64), 70000, 256, 3200, 100),
        _size(8, (1, 128), 15000, 384, 103000, 500, 25, infer=64),
    ),
)  # fmt: skip
TASKS: dict[str, Task] = {task.name: task for task in _ALL}
