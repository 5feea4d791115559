# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Files of older versions are read, and their owner is told what changed; a file of a newer version is refused."""

from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from cotenant.errors import InputError
from cotenant.kube.settings import MIGRATIONS, KubeSettings, read_settings
from cotenant.wire.migration import Step, migrate


def renamed(old: str, new: str) -> Step:
    def change(content: dict[str, Any]) -> dict[str, Any]:
        return {new if name == old else name: value for name, value in content.items()}

    return Step(f"`{old}` is now `{new}`", change)


STEPS = (renamed("cards", "gpus"), renamed("split", "slots"))


def told(found: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    lines: list[str] = []
    return migrate(found, STEPS, lines.append), lines


def test_a_file_of_the_first_version_goes_through_every_step() -> None:
    found = {"version": 1, "cards": 2, "split": 3}
    assert told(found) == (
        {"gpus": 2, "slots": 3},
        [
            "version 1 is read as version 2: `cards` is now `gpus`",
            "version 2 is read as version 3: `split` is now `slots`",
        ],
    )
    assert found == {"version": 1, "cards": 2, "split": 3}


def test_a_file_goes_through_the_steps_after_its_version_only() -> None:
    assert told({"version": 2, "cards": 2, "split": 3})[0] == {"cards": 2, "slots": 3}
    assert told({"version": 3, "split": 3}) == ({"split": 3}, [])


def test_a_file_without_a_version_is_of_the_first_one() -> None:
    assert told({"cards": 2})[0] == {"gpus": 2}


@pytest.mark.parametrize("version", [0, -1, "1", 1.0, True, None])
def test_what_is_no_version_is_refused(version: object) -> None:
    with pytest.raises(InputError, match="is not a version; expected 1 to 3"):
        told({"version": version})


def test_settings_of_a_newer_version_are_refused_with_a_sentence(tmp_path: Path) -> None:
    newer = 2 + len(MIGRATIONS)
    (tmp_path / "settings.yaml").write_text(f"version: {newer}\nunknown: 1\n")
    with pytest.raises(InputError) as raised:
        read_settings(tmp_path / "settings.yaml")
    assert str(raised.value).startswith(
        f"settings {tmp_path}/settings.yaml: version {newer} is newer than this cotenant"
    )


def test_the_version_of_the_settings_is_the_one_that_the_steps_lead_to() -> None:
    assert get_args(get_type_hints(KubeSettings)["version"]) == (1 + len(MIGRATIONS),)


def test_settings_of_an_older_version_are_read_and_the_difference_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "settings.yaml").write_text("version: 1\ncards: {split: 3}\n")
    read = read_settings(tmp_path / "settings.yaml", migrations=[*MIGRATIONS, renamed("cards", "gpus")])
    assert read.gpus.split == 3
    said = f"settings {tmp_path}/settings.yaml: version 1 is read as version 2: `cards` is now `gpus`\n"
    assert capsys.readouterr().err == said
