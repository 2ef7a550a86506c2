"""Generators side by side: only photographs that all of them describe."""

from collections.abc import Iterable

from pipeline.report.examples import ReportPicture
from pipeline.report.generated import SHOWN, compare_generators


def description(name: str, ids: list[int]) -> dict:
    sentence = {"text": f"{name} says", "score": 1.0, "verbatim": name == "nearest"}
    images = [{"image_id": i, "box": None, "sentences": [sentence, {**sentence, "text": "worse"}]} for i in ids]
    return {"generator": name, "images": [*images, {"image_id": 9, "box": [0, 0, 1, 1], "sentences": [sentence]}]}


def test_the_best_sentence_of_each_generator_stands_beside_the_photograph() -> None:
    def pick(ids: Iterable[int]) -> list[dict]:
        return [{"image_id": i, "path": f"{i}.png"} for i in ids]

    told = [description("nearest", list(range(12))), description("mrnn", list(range(3, 15)))]
    found = compare_generators(told, pick, lambda row: ReportPicture(row["path"], None))
    assert [one.what.name for one in found][0] == "3.png" and [one.what.name for one in found][-1] == "11.png"
    assert len(found) == SHOWN
    assert all(one.sentences == [("nearest", "nearest says", True), ("mrnn", "mrnn says", False)] for one in found)
    assert compare_generators([], pick, lambda row: ReportPicture(row["path"], None)) == []
