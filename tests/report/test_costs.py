"""The table of costs: what was forecast, what was taken, and what is not known."""

from pipeline.plan.comparison import Fact, compare
from pipeline.plan.forecast import Stage
from pipeline.report.costs import cost_table, duration

FACTS = {"fit": Fact(2, 30.0, 55.0, 700.0), "make_demo": Fact(1, 90.0, 80.0, 200.0)}


def test_forecast_stands_beside_fact() -> None:
    stages = [Stage("fit", 2, 60.0, 900.0, 0.0, 5.0), Stage("report", 1, 2.0, 800.0, 0.0, 5.0)]
    table = cost_table(compare(stages, FACTS))
    assert table.planned
    cells = {stage: dict(zip(table.headings, line, strict=True)) for stage, line in table.lines}
    assert list(cells) == ["fit", "report", "make-demo", "total"]
    assert cells["fit"] == {
        "forecast": "1 min 0 s", "took": "30.0 s", "forecast / took": "2.00", "processor": "55.0 s", "jobs": "2",
        "memory asked for": "900 MB", "largest job": "700 MB",
    }  # fmt: skip
    assert (cells["make-demo"]["forecast"], cells["report"]["took"]) == ("–", "–")
    assert (cells["total"]["took"], cells["total"]["forecast / took"]) == ("2 min 0 s", "2.00")


def test_without_a_plan_there_is_only_what_was_taken() -> None:
    table = cost_table(compare([], FACTS))
    assert not table.planned and table.headings == ["took", "processor", "jobs", "largest job"]
    assert cost_table([]) is None


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0.04, 59.9, 59.96)] == ["0.0 s", "59.9 s", "1 min 0 s"]
    assert [duration(seconds) for seconds in (119.7, 125.0)] == ["2 min 0 s", "2 min 5 s"]
