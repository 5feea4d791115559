# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch adapter with the real PyTorch, which is too big to be installed for every test run."""

import pytest

from cotenant.job import Session
from cotenant.job.adapters import TorchLoop
from tests.job.serving import ScriptedAgent

torch = pytest.importorskip("torch", reason="needs PyTorch, several GB: make test-torch installs it")


def test_a_model_learns_while_its_batch_size_changes(agent: ScriptedAgent) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(1024, 8)
    data = torch.utils.data.TensorDataset(inputs, inputs @ torch.randn(8, 1))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
    with Session(agent=agent.path, job="j-1", batch=16, lr_rule="sqrt") as session:
        agent.accept()
        agent.read()
        batches = TorchLoop(
            lambda size: torch.utils.data.DataLoader(data, size, shuffle=True),
            optimizer,
            session=session,
            noise_every=5,
        )
        losses, sizes = [], []
        for epoch in range(3):
            for samples, labels in batches:
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(samples), labels)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                sizes.append(len(samples))
            scheduler.step()
            assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.9 ** (epoch + 1))
            agent.say({"t": "batch", "size": 64, "lr_scale": 2.0})
    assert set(sizes[:64]) == {16}
    assert set(sizes[64:]) == {64}
    assert losses[-1] < losses[0] / 100
    report = agent.read()
    assert (report["batch"], report["n"], report["samples"]) == (16, 63, 63 * 16)
    assert report["grad_var"] is not None
