"""A power cut takes nothing that anybody was told of; and bugs by which it would are found."""

from __future__ import annotations

import pytest
from tests.integration.planted_bugs import BUGS
from tests.integration.power_cuts import Campaign, Lost, cut_power, quick_folder, record_work


def test_no_power_cut_takes_what_anybody_was_told_of() -> None:
    counts = cut_power(seed=1, cuts=250, again=3)
    assert counts["opened"] > 400
    assert counts["cut again while starting"] == 3


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    with quick_folder() as folder:
        campaign = Campaign(record_work(folder / "work", bug, rounds=(1,)), folder, bug)
        with pytest.raises(Lost):
            campaign.run(cuts=600)  # it ends with the first that is found
