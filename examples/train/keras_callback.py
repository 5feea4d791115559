# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A Keras model that shares its GPU: the three marked lines are the only addition.

Needs Keras 3. `fit` keeps one batch size, so the data set takes a new one between epochs. Without `resize` the job is
not tuned.
"""

import keras
import numpy as np

from cotenant.job.adapters import keras_callback  # 1


class Samples(keras.utils.PyDataset):
    """Samples in batches of a size that can change between epochs."""

    def __init__(self, inputs: np.ndarray, labels: np.ndarray, size: int) -> None:
        super().__init__()
        self.inputs, self.labels, self.size = inputs, labels, size

    def resize(self, size: int) -> None:  # 2
        self.size = size

    def __len__(self) -> int:
        return -(-len(self.inputs) // self.size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        part = slice(index * self.size, (index + 1) * self.size)
        return self.inputs[part], self.labels[part]


def main() -> None:
    chance = np.random.default_rng(0)
    inputs = chance.normal(size=(4096, 32)).astype("float32")
    samples = Samples(inputs, inputs @ chance.normal(size=(32, 1)).astype("float32"), size=64)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
    model.fit(samples, epochs=5, callbacks=[keras_callback(batch=64, resize=samples.resize)])  # 3


if __name__ == "__main__":
    main()
