"""How rates of links are written, and which are refused."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

from mqgrad.experiments.netlab.link import (
    LinkRates,
    LinkShape,
    RateChange,
    parse_link_rate,
    parse_link_rates,
)


def test_rates_are_read() -> None:
    assert [parse_link_rate(text) for text in ("500kbit", "100mbit", "2.5gbit", "none")] == [
        0.5,
        100.0,
        2500.0,
        None,
    ]
    switching = parse_link_rates("100mbit/none@2.5s")
    assert switching == LinkRates((100.0, None), 2.5)
    assert list(itertools.islice(switching.changes(), 3)) == [
        RateChange(2.5, None),
        RateChange(5.0, 100.0),
        RateChange(7.5, None),
    ]
    assert list(parse_link_rates("1gbit").changes()) == []


@pytest.mark.parametrize("text", ["100", "100mbps", "-1mbit", "", "fast"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        parse_link_rate(text)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_link_rate, "50kbit"),
        (parse_link_rates, "100mbit/0.05mbit@1s"),
    ],
)
def test_a_rate_that_no_link_can_have_is_refused_before_it_comes_into_force(
    parse: Callable[[str], object], text: str
) -> None:
    with pytest.raises(ValueError, match=r"0\.05 Mbit/s is too low: at least 0\.1"):
        parse(text)


@pytest.mark.parametrize(
    "text", ["1gbit@10s", "1gbit/100mbit", "1gbit/100mbit@10", "1gbit/fast@10s", "1gbit/2gbit@0s"]
)
def test_what_is_no_switching_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"as in 100mbit/1gbit@10s|not a rate|cannot switch"):
        parse_link_rates(text)


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ({"rate_mbit_per_s": 0.0}, "too low"),
        ({"rate_mbit_per_s": math.nan}, "rate_mbit_per_s must be a finite number .* not nan"),
        ({"rate_mbit_per_s": math.inf}, "rate_mbit_per_s must be a finite number .* not inf"),
        ({"queue_ms": 0.0}, "queue_ms must be a finite number above 0, not 0"),
        ({"queue_ms": math.nan}, "queue_ms must be a finite number above 0, not nan"),
        ({"queue_ms": math.inf}, "queue_ms must be a finite number above 0, not inf"),
        ({"rate_mbit_per_s": 1e8}, "1e\\+08 Mbit/s is too high"),
        ({"queue_ms": 1e12}, "1e\\+12 ms at 100 Mbit/s is too long"),
    ],
)
def test_impossible_links_are_refused(link: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LinkShape(**link)


def test_little_passes_at_once_after_a_pause() -> None:
    """Half a millisecond of the rate, of which a packet is half: with the whole 2 ms a small message met no link."""
    shape = LinkShape(rate_mbit_per_s=1000)
    buckets, queue = shape.changed_to("eth0", 1000)
    assert (
        "rate 1000000000bit burst 218750 ceil 1050000000bit cburst 31250" in buckets
    )  # and a packet more each
    assert queue.endswith("bfifo limit 25250000")
    assert shape.at(None).changed_to("eth0", 1000) == [
        "qdisc replace dev eth0 root handle 1: htb default 1",
        buckets,
        queue,
    ]
    assert shape.largest_packet == 31250
    assert shape.at(10_000).largest_packet == 65536
    assert shape.at(None).largest_packet == 65536
    assert shape.at(0.5).largest_packet == 1600
