# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A PyTorch training loop that shares its GPU: the three marked lines are the only addition.

Needs PyTorch. Runs with and without an agent.
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

from cotenant.job.adapters import TorchLoop  # 1


def main() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(4096, 32)
    data = TensorDataset(inputs, inputs @ torch.randn(32, 1))
    model = torch.nn.Linear(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches = TorchLoop(lambda size: DataLoader(data, size, shuffle=True), optimizer, batch=64)  # 2
    for epoch in range(5):
        value = torch.zeros(())
        for samples, labels in batches:  # 3
            optimizer.zero_grad()
            value = torch.nn.functional.mse_loss(model(samples), labels)
            value.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {value.item():.5f}")


if __name__ == "__main__":
    main()
