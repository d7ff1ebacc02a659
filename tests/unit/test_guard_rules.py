import msgspec
import pytest

from bench.guard.rules import ALLOWED, RENEW, Baseline, Conditions, compare, incomparable, per_page

pytestmark = pytest.mark.full

HERE = Conditions(python="3.11.7", platform="linux", sqlite="3.40.1", constraints="abc")
BASELINE = Baseline(conditions=HERE, instructions={"a": 1000.0, "b": 2000.0}, calls={"a": 10.0, "b": 20.0})


def test_the_cost_of_a_page_leaves_out_what_every_crawl_costs():
    counts = {"a": [500 + 20 * 7, 500 + 200 * 7], "b": [900 + 20 * 11, 900 + 200 * 11]}

    assert per_page(counts, small=20, large=200) == {"a": 7.0, "b": 11.0}


@pytest.mark.parametrize(("count", "is_dearer"), [(1099.0, False), (1100.0, False), (1101.0, True), (800.0, False)])
def test_fails_when_a_page_is_more_than_a_tenth_dearer(count, is_dearer):
    assert ALLOWED == 0.1
    assert compare({"a": count, "b": 2000.0}, BASELINE, unit="instructions").is_dearer is is_dearer


def test_one_part_that_is_dearer_fails_though_another_is_cheaper():
    assert compare({"a": 500.0, "b": 2300.0}, BASELINE, unit="instructions").is_dearer


def test_says_by_how_much_a_page_is_dearer_and_how_the_baseline_is_renewed():
    dear, fine = compare({"a": 1250.0, "b": 2000.0}, BASELINE, unit="instructions").lines

    assert "+25.0%" in dear
    assert RENEW in dear
    assert RENEW not in fine


def test_asks_for_a_new_baseline_when_a_page_is_a_tenth_cheaper():
    cheap, fine = compare({"a": 850.0, "b": 1900.0}, BASELINE, unit="instructions").lines

    assert RENEW in cheap
    assert RENEW not in fine


def test_calls_are_compared_with_calls():
    assert not compare({"a": 10.0, "b": 20.0}, BASELINE, unit="calls").is_dearer
    assert compare({"a": 12.0, "b": 20.0}, BASELINE, unit="calls").is_dearer


def test_a_part_without_a_baseline_fails():
    verdict = compare({"a": 1000.0, "c": 1.0}, BASELINE, unit="instructions")

    assert verdict.is_dearer
    assert RENEW in verdict.lines[0]


def test_a_part_that_is_not_counted_here_is_not_compared():
    assert not compare({"b": 2000.0}, BASELINE, unit="instructions").is_dearer
    assert compare({"b": 2300.0}, BASELINE, unit="instructions").is_dearer


def test_equal_conditions_can_be_compared():
    assert incomparable(BASELINE, conditions=HERE) is None


@pytest.mark.parametrize("name", Conditions.__struct_fields__)
def test_other_conditions_pass_and_are_named(name):
    verdict = incomparable(BASELINE, conditions=msgspec.structs.replace(HERE, **{name: "another"}))

    assert verdict is not None
    assert not verdict.is_dearer
    assert f"{name} was" in verdict.lines[0]
    assert RENEW in verdict.lines[0]
