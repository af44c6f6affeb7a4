"""Tests verdicts, predicates and the log of refusals."""

from __future__ import annotations

import pytest

from segments import Refusal, RefusalCode, RefusalLog, Verdict, any_of, as_verdict, both, negate, no, yes


def small(first: int, second: int) -> bool:
    return first + second < 10


def even(first: int, second: int) -> Verdict:
    return yes() if (first + second) % 2 == 0 else no("an odd sum", first=first, second=second)


def test_a_no_reads_as_its_reason_with_the_details() -> None:
    verdict = no("both reduce, over different axes", a=(1,), b=(0,))
    assert not verdict
    assert str(verdict) == "both reduce, over different axes (a=(1,), b=(0,))"
    assert verdict.details == {"a": (1,), "b": (0,)}
    assert str(no("too big")) == "too big"


def test_a_yes_carries_the_facts_of_the_union() -> None:
    verdict = yes({"steps": 3})
    assert verdict
    assert verdict.facts == {"steps": 3}
    assert str(verdict) == "yes"


def test_a_no_must_have_a_reason() -> None:
    with pytest.raises(ValueError, match="a refusal needs a reason"):
        no("")


def test_verdicts_compare_and_hash() -> None:
    assert no("too big", n=1) == no("too big", n=1)
    assert no("too big", n=1) != no("too big", n=2)
    assert hash(no("too big", n=[1])) == hash(no("too big", n=[1]))


def test_both_gives_the_first_no() -> None:
    predicate = both(small, even)
    assert predicate(2, 4)
    assert str(predicate(2, 5)) == "an odd sum (first=2, second=5)"
    assert str(predicate(20, 5)) == "small refused"
    assert predicate.__name__ == "both(small, even)"


def test_any_of_gives_all_the_reasons_of_a_refusal() -> None:
    predicate = any_of(small, even)
    assert predicate(2, 5)
    assert predicate(20, 4)
    assert str(predicate(20, 5)) == "small refused; an odd sum (first=20, second=5)"
    assert str(any_of()(1, 2)) == "any_of() without predicates allows no merge"


def test_negate_gives_its_own_reason() -> None:
    assert negate(small)(20, 5)
    assert str(negate(small)(1, 2)) == "negate(small) refused"
    assert str(negate(small, "too small")(1, 2)) == "too small"


@pytest.mark.parametrize("answer", [None, 1, "yes"])
def test_an_answer_that_is_no_verdict_is_refused_with_what_to_return(answer: object) -> None:
    with pytest.raises(TypeError, match=r"size returned .*; it must return a bool"):
        as_verdict(answer, "size")


def test_programs_tell_refusals_apart_by_code_and_not_by_their_text() -> None:
    refused = no("they differ", RefusalCode.CYCLE, first=1)
    assert refused.code is RefusalCode.CYCLE
    assert str(refused) == "they differ (first=1)"
    assert as_verdict(False).code is negate(small)(1, 2).code is any_of()(1, 2).code is RefusalCode.PREDICATE
    assert no("for people").code is None


def test_a_full_log_counts_and_does_not_ask_for_the_steps() -> None:
    log = RefusalLog(limit=1)
    log.add(lambda: (0,), lambda: (1,), no("too big"))

    def never() -> tuple[int, ...]:
        raise AssertionError("a full log has no use for the steps")

    log.add(never, never, no("too big"))
    assert log.refusals == [Refusal((0,), (1,), no("too big"))]
    assert log.dropped == 1
    assert str(log.refusals[0]) == "(0,) with (1,): too big"
