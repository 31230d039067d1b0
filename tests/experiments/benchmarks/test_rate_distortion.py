"""Every code is sent as the script that draws them sends it. It was broken unseen, twice, by what a layout asks of a
bucket."""

import gradient_sources
import pytest
import torch
from gradient_sources import Source
from rate_distortion import all_codes, measure
from scale_choices import BUCKET_SIZES, PRECISIONS, WIDTHS, measure_places, measure_sizes

SMALL = Source("small", [torch.randn(700), torch.randn(8, 16)])


def test_every_code_says_what_it_sends_and_how_well() -> None:
    codes, _ = all_codes()
    points = [measure(SMALL, code) for code in codes]
    assert {point.family for point in points} >= {
        "sparse",
        "uniform, nearest",
        "rotation, unbiased",
        "bfloat16",
    }
    for point in points:
        assert point.wire_bits > point.bits / 2, point
        assert 0 <= point.nmse < 20, point  # the most with one level each way, and no feedback
    nearest = {point.bits: point.nmse for point in points if point.family == "uniform, nearest"}
    assert nearest[8] < nearest[4] < nearest[2]


def test_scales_are_measured_at_every_size_and_place() -> None:
    sizes = measure_sizes(SMALL)
    assert len(sizes) == len(WIDTHS) * len(BUCKET_SIZES) * len(PRECISIONS)
    errors = {row["place"]: row["nmse"] for row in measure_places(SMALL) if row["bits"] == 4}
    assert errors["best clip"] <= errors["largest magnitude"]


def test_gradients_are_recorded_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_sources, "LATE", 5)
    early, late = gradient_sources.recorded("digits-mlp")
    assert (early.name, late.name) == ("digits-mlp, iteration 3", "digits-mlp, iteration 5")
    assert early.numel == late.numel == sum(early.layout(512).numels)
