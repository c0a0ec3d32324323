"""What a notebook shows of plans, planners and reports."""

from html.parser import HTMLParser

import numpy as np
import pytest
from bucketshuffle import Planner, pack_epoch
from bucketshuffle.report import Report
from bucketshuffle.report.draw import PLOTS
from conftest import uneven_lengths

LENGTHS = uneven_lengths(3_000)


def words(shown: object) -> str:
    """The text of what a notebook gets, once it is known that every tag is closed."""
    open_tags, texts = [], []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

        def handle_data(self, data: str) -> None:
            texts.append(data)

    reader = Reader()
    reader.feed(shown._repr_html_())  # type: ignore[attr-defined]
    reader.close()
    assert open_tags == []
    return " ".join(texts)


def test_a_plan_shows_what_it_is_worth() -> None:
    plan = pack_epoch([*LENGTHS, 0], 7, epoch=2, token_budget=16_384, empty="drop")
    shown = words(plan)
    assert f"{len(plan):,} of 3,000 samples, {plan.stats.n_shapes:,} shapes" in shown
    assert f"padded / real {plan.stats.padding_ratio:.4f}" in shown
    assert "epoch 2 of seed 7" in shown
    assert shown.lstrip().startswith("EpochPlan ")
    assert "left out 1 samples, 0 tokens" in shown
    assert "left out" not in words(pack_epoch(LENGTHS, 0))
    assert "note: window = 9 exceeds the 1 batches" in words(pack_epoch([1], 0, window=9))
    assert "0 of 0 samples" in words(pack_epoch([], 0))


def test_a_planner_shows_its_options() -> None:
    shown = words(Planner(LENGTHS, boundaries=[0, 100, 9_000]))
    assert "n_samples 3,000 token_budget 131072 min_batch_size 1 boundaries [0, 100, 9000] repeat_weight" in shown
    assert "max_batch_size" not in shown  # not set
    assert "n_samples 3,000 " in words(Planner([*LENGTHS, 0, 0], empty="drop"))


def test_a_report_shows_words_and_tables() -> None:
    report = Report.of(LENGTHS, name="<b>bold</b> & co.npy", token_budget=16_384)
    shown = words(report)
    assert shown.lstrip().startswith("<b>bold</b> & co.npy: 3,000 samples, ")
    assert all(table.title in shown for table in report.tables())
    assert all(sentence in shown for sentence in report.advice)
    assert repr(report) == f"<Report of <b>bold</b> & co.npy: 3,000 samples, {len(report.advice)} notes>"


def test_a_report_draws_itself() -> None:
    report = Report.of(LENGTHS, token_budget=16_384, window=8)
    assert [axes.get_title(loc="left").lower() for axes in report.figure().axes] == list(PLOTS)
    assert len(report.figure("other budgets").axes) == 1
    with pytest.raises(ValueError, match=r"^plot = 'pie' is not one of 'lengths', 'padding by length', "):
        report.figure("pie")
    with pytest.raises(
        ValueError, match=r"^lengths has no sample to plan, so there is nothing to draw; see report.advice$"
    ):
        Report.of(np.zeros(3, np.int64)).figure()
