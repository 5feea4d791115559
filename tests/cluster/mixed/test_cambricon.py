# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`examples/cambricon` on a real cluster: MLUs in both dialects, and the types that pods name."""

from tests.cluster.engine import Engine, gpus_of, record_of
from tests.cluster.examples import apply, run_in
from tests.cluster.mixed.world import cards_of


def test_both_dialects_get_their_mlus_and_what_their_programs_read(mixed: Engine) -> None:
    apply(mixed, "cambricon/pods.yaml")
    cards = list(cards_of(mixed, "node2"))
    share = mixed.started("mlu-share")
    assert (share["spec"]["nodeName"], sorted(gpus_of(share))) == ("node2", sorted(cards))
    assert [one.memory for one in record_of(share).held_by(0)] == [3072, 3072]
    variables = dict(line.split("=", 1) for line in run_in(mixed, "mlu-share", "env").splitlines() if "=" in line)
    assert variables["CAMBRICON_SPLIT_ENABLE"] == "1"
    assert variables["CAMBRICON_SPLIT_VISIBLE_DEVICES"] == ",".join(str(cards.index(one)) for one in gpus_of(share))
    assert variables["CAMBRICON_SPLIT_MEMS"] == "3,3"
    smlu = mixed.started("smlu")
    (gpu,) = gpus_of(smlu)
    assert smlu["metadata"]["annotations"]["CAMBRICON_DSMLU_PROFILE"] == f"{cards.index(gpu)}_10_20"
    assert "no GPU of that type" in mixed.waits("another-type")
