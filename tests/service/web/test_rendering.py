import pytest

from service.web.rendering import ago, duration, memory, number_text, short_id, size


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (1, "now"),
        (59, "59 s ago"),
        (60, "1 min ago"),
        (3_599, "59 min ago"),
        (90_000, "1 d ago"),
        (-300, "in 5 min"),
        (40 * 86_400, "2026-10-12"),
    ],
)
def test_a_moment_is_told_by_its_distance_and_a_distant_one_by_its_date(before, words):
    now = 1_795_262_400.0  # 2026-11-21 12:00 UTC
    assert ago(now - before, now) == words


def test_durations_have_two_units_at_most():
    assert [duration(each) for each in (0.44, 42, 185, 7_800, 360_000)] == [
        "0.4 s",
        "42 s",
        "3 min 5 s",
        "2 h 10 min",
        "4 d 4 h",
    ]


def test_a_minute_is_never_told_as_sixty_seconds():
    assert duration(59.7) == "1 min 0 s"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.84231, "0.8423"),
        (57.142857, "57.14"),
        (1234.5, "1234"),
        (45_678.9, "45,679"),
        (1.2e-05, "1.20e-05"),
        (0.0, "0"),
        (7, "7"),
        (1_234_567, "1,234,567"),
        (float("nan"), "nan"),
        (True, "yes"),
        (None, ""),
    ],
)
def test_numbers_show_four_figures(value, words):
    assert number_text(value) == words


def test_bytes_are_told_in_thousands_and_memory_in_powers_of_two():
    assert size(1_500) == "1.5 kB"
    assert memory(141 << 30) == "141 GiB"


def test_an_id_is_shortened_to_its_random_end():
    assert short_id("job-01m801gvwxf3n271sqz4dxm0tm") == "job-…dxm0tm"
