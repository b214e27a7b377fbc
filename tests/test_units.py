import doctest

import pytest

import emu.units as units
from emu.errors import ConfigError
from emu.units import (
    format_bandwidth,
    format_bytes,
    format_time,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_flops,
    parse_fraction,
    parse_number,
    parse_power,
    parse_time,
)


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(units).failed == 0


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("8 b/s", 1),
        ("100 Gb/s", 12.5e9),
        ("100Gb/s", 12.5e9),
        ("100 Gbit/s", 12.5e9),
        ("100 Gbps", 12.5e9),
        ("100 GB/s", 100e9),
        ("1 GiB/s", 2**30),
        ("1 Gib/s", 2**27),
        (" 1.5e3 MB/s ", 1.5e9),
    ],
)
def test_a_bit_is_not_a_byte(text, bytes_per_s):
    assert parse_bandwidth(text) == pytest.approx(bytes_per_s, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1 s", 1),
        ("2 us", 2e-6),
        ("2µs", 2e-6),
        ("2 μs", 2e-6),
        ("3 ms", 3e-3),
        ("4 ns", 4e-9),
        ("1 min", 60),
    ],
)
def test_times_are_seconds(text, seconds):
    assert parse_time(text) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "count"), [("25 MiB", 25 * 2**20), ("25 MB", 25_000_000), ("0.5 KiB", 512), ("7 B", 7), (7, 7)]
)
def test_sizes_are_bytes(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "flops"), [("19.5 TFLOPS", 19.5e12), ("1 PFLOP/s", 1e15), ("624 TOPS", 624e12)]
)
def test_flops(text, flops):
    assert parse_flops(text) == flops


def test_power_and_fractions():
    assert parse_power("0.4 kW") == 400
    assert parse_fraction(1) == 1
    assert parse_number("-3.5") == -3.5
    assert parse_count("12") == 12


@pytest.mark.parametrize("parse", [parse_bandwidth, parse_time, parse_flops, parse_power, parse_bytes])
@pytest.mark.parametrize(
    "text", ["", "fast", "12", "-1 X", "1e999 B/s", "nan s", "12 parsec", 1.5, None, True, [1]]
)
def test_what_is_not_a_quantity_is_an_error_that_names_the_place(parse, text):
    with pytest.raises(ConfigError, match="^nic.bandwidth: "):
        parse(text, "nic.bandwidth")


@pytest.mark.parametrize(
    ("parse", "text", "words"),
    [
        (parse_bandwidth, "12", "has no unit"),
        (parse_bandwidth, "-12 Gb/s", "must not be negative"),
        (parse_bandwidth, "0 Gb/s", "must be above zero"),
        (parse_bandwidth, "nan Gb/s", "must be a finite number"),
        (parse_bandwidth, "inf Gb/s", "must be a finite number"),
        (parse_bandwidth, "12 gb/s", "did you mean 'GB/s' or 'Gb/s'?"),
        (parse_bandwidth, "12 GB", "unknown unit 'GB'"),
        (parse_bandwidth, 12, "with its unit, in quotes"),
        (parse_time, "5 Gb/s", "unknown unit"),
        (parse_time, "0 us", "must be above zero"),
        (parse_bytes, "8 Gb", "did you mean 'GB'"),
        (parse_bytes, "0.3 B", "whole number of bytes"),
        (parse_bytes, 0, "at least 1 byte"),
        (parse_bytes, -4, "must not be negative"),
        (parse_fraction, 1.5, "at most 1"),
        (parse_fraction, 0, "above 0"),
        (parse_count, 1.5, "whole number"),
        (parse_count, 0, "at least 1"),
        (parse_number, "fast", "must be a number"),
    ],
)
def test_each_kind_of_bad_input_says_what_must_hold(parse, text, words):
    with pytest.raises(ConfigError) as error:
        parse(text, "here")
    assert words in str(error.value)
    assert str(error.value).startswith("here: ")
    assert repr(text) in str(error.value) or str(text) in str(error.value)


def test_zero_is_allowed_where_the_caller_says_so():
    assert parse_time("0 us", zero=True) == 0
    assert parse_bytes(0, zero=True) == 0


@pytest.mark.parametrize("count", [1, 1023, 1024, 25 * 2**20, 10**9, 12_345_678])
def test_a_written_size_reads_back_within_its_digits(count):
    assert parse_bytes(round(float(parse_bytes_back(format_bytes(count))))) == pytest.approx(count, rel=1e-3)


def parse_bytes_back(text):
    number, unit = text.split()
    return float(number) * units._BYTES[unit]


@pytest.mark.parametrize("number", [1, 3, 5, 7, 1.1, 2.3])
def test_a_written_time_is_the_nearest_float(number):
    assert parse_time(f"{number} us") == float(f"{number}e-6")


def test_formats_carry_a_unit():
    assert format_bandwidth(31.5e9) == "31.5 GB/s"
    assert format_time(1e-6) == "1 us"
    assert format_time(2.5e-9) == "2.5 ns"
    assert format_time(0.2) == "200 ms"
