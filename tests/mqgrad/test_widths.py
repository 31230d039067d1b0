"""How widths are written and read, and which are refused."""

import json

import pytest

from mqgrad.widths import (
    WIDTHS,
    as_width,
    check_parameter_widths,
    check_width,
    format_width,
    parse_width,
    parse_widths,
)


@pytest.mark.parametrize("bits", [*WIDTHS, 1 / 2, 1 / 4, 1 / 64])
def test_text_json_and_float_give_the_width_back(bits: float) -> None:
    assert parse_width(format_width(bits)) == bits
    assert parse_width(str(bits)) == bits
    assert json.loads(json.dumps(bits)) == bits
    assert type(as_width(float(bits))) is type(bits)


@pytest.mark.parametrize("text", ["", "x", "1/0", "nan", "1e999", "1/4/2"])
def test_what_is_not_a_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        parse_width(text)
    with pytest.raises(ValueError, match="is not a number"):
        parse_widths(f"4+{text}")


def test_several_widths_are_joined_by_plus_signs() -> None:
    assert parse_widths("1/4+2 + 32") == (0.25, 2, 32)
    assert parse_widths("4") == (4,)


@pytest.mark.parametrize("bits", [True, 0, -1, 2.5, 9, 1 / 3, 1 / 128, float("nan"), float("inf"), "4", None])
def test_other_widths_are_refused(bits: object) -> None:
    with pytest.raises(ValueError, match="is not supported; choose one of"):
        check_width(bits)  # type: ignore[arg-type]


def test_fractions_are_written_as_such() -> None:
    assert [format_width(bits) for bits in (1 / 64, 0.25, 1, 8.0)] == ["1/64", "1/4", "1", "8"]


@pytest.mark.parametrize(
    ("bits", "mixed", "message"),
    [
        ([2, 9], (2, 4), "bit width 9 is not supported; choose one of 2, 4"),
        ([2, 0.5], (2, 4), "bit width 0.5"),
        ([2], (2, 4), "1 bit widths for 2 parameters"),
        ([], (2, 4), "0 bit widths for 2 parameters"),
        ([2, 4], (), "takes one bit width for all parameters"),
        ([16, 16], (2, 4), "bit width 16"),
    ],
)
def test_widths_by_parameter_are_checked(bits: list, mixed: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_parameter_widths(bits, (0.5, 2, 4), mixed, 2)


def test_equal_widths_are_one_width() -> None:
    assert check_parameter_widths([4, 4], (2, 4), (2, 4), 2) == 4
    assert check_parameter_widths([0.5, 0.5], (0.5, 2), (2,), 2) == 0.5
    assert check_parameter_widths([2, 4], (2, 4), (2, 4), 2) == (2, 4)
