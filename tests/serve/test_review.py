"""The server of the review page writes decisions, undoes each decision, and refuses requests that the page did not
send."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from served_run import audited_run, make_client, serve
from synthetic_run import THINGS, by_hand, run_command

from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.serve.gallery import ServedGallery
from pipeline.storage.decisions import Decision, read_decisions, write_decisions
from pipeline.storage.tables import read_table, write_table

ORIGIN = {"Origin": "http://127.0.0.1"}
STEPS = "/api/review/decisions"
NAMES = [f"{THINGS[i % 8]}-{i}.png" for i in range(6)]
CAPTIONS = [[f"a {THINGS[i % 8]}", f"the big {THINGS[i % 8]} number {i}"] for i in range(6)]


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    """Make a run with an audit of three suspicious pairs, and return its folder."""
    audited_run(run, tmp_path)
    return tmp_path


def open_page(folder: Path) -> tuple[TestClient, dict[str, str]]:
    """Start a server with the review page for the run in `folder`, and return a client and the headers that the page
    sends with a decision."""
    client = TestClient(serve(folder, "--review", index="index/ncca"), base_url="http://127.0.0.1")
    (token,) = re.findall('name="token" content="([^"]{40,})"', client.get("/review").text)
    return client, {**ORIGIN, "X-Review-Token": token}


def decided(folder: Path) -> list[tuple[str, ...]]:
    return [row[:3] for row in read_decisions(folder / "audit/decisions.tsv")]


def test_suspicious_pairs_are_shown_with_their_photo_and_its_other_captions(folder: Path) -> None:
    client, _ = open_page(folder)
    answer = client.get("/api/review").json()
    assert answer["pairs"] == [
        {"image": name, "whole": whole, "captions": captions, "others": others}
        for name, whole, captions, others in (
            (NAMES[3], False, CAPTIONS[3][:1], CAPTIONS[3][1:]),
            (NAMES[5], True, CAPTIONS[5], []),
            (NAMES[1], False, CAPTIONS[1][:1], CAPTIONS[1][1:]),
        )
    ]
    assert answer["probable"] == 2, "the score of the third pair is above the threshold"
    assert answer["decisions"] == [None] * 3 and not (folder / "audit/decisions.tsv").exists()
    photos = [client.get(f"/api/review/photographs/{number}") for number in range(3)]
    for photo, image_id in zip(photos, (3, 5, 1), strict=True):
        assert photo.content == client.get(f"/api/models/ncca/photographs/{image_id}/large").content
    for number in (3, -1):
        missing = client.get(f"/api/review/photographs/{number}")
        assert missing.status_code == 404 and f"There is no pair {number}." in missing.json()["error"]


def test_every_step_is_written_and_can_be_undone(folder: Path) -> None:
    client, headers = open_page(folder)

    def take(step: str, **pair: int) -> dict[str, Any]:
        answer = client.post(STEPS, json={"step": step, **pair}, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    steps = [("wrong", 0, ["wrong", None, None]), ("right", 1, ["wrong", "right", None]), ("unsure", 0, None)]
    for step, pair, expected in steps:
        assert take(step, pair=pair) == {"pair": pair, "decisions": expected or ["unsure", "right", None]}
    rows = [(NAMES[3], CAPTIONS[3][0], "wrong"), (NAMES[5], "", "right"), (NAMES[3], CAPTIONS[3][0], "unsure")]
    assert decided(folder) == rows
    client, headers = open_page(folder)  # A new server has another token, and the decisions are still there.
    assert client.get("/api/review").json()["decisions"] == ["unsure", "right", None]
    expected = [["wrong", "right", None], ["wrong", None, None], [None] * 3]
    for left, pair, decisions in zip((2, 1, 0), (0, 1, 0), expected, strict=True):
        assert take("undo") == {"pair": pair, "decisions": decisions} and decided(folder) == rows[:left]
    refused = client.post(STEPS, json={"step": "undo"}, headers=headers)
    assert refused.status_code == 422 and "no decision that can be undone" in refused.json()["error"]


def test_a_decision_of_an_older_audit_is_undone_as_well(folder: Path) -> None:
    (folder / "audit/decisions.tsv").write_text("image\tcaption\tdecision\ttime\ngone.png\ta cat\tright\t2024-01-31\n")
    client, headers = open_page(folder)
    assert client.post(STEPS, json={"step": "undo"}, headers=headers).json()["pair"] is None
    assert decided(folder) == []


@pytest.mark.parametrize(
    ("method", "changed", "body", "status"),
    [
        ("POST", {"Origin": "http://evil.example"}, None, 403),
        ("POST", {"Origin": "null"}, None, 403),
        ("POST", {"Origin": "http://127.0.0.1:1"}, None, 403),
        ("POST", {"Origin": None}, None, 403),
        ("POST", {"Host": "evil.example", "Origin": "http://evil.example"}, None, 400),
        ("POST", {"X-Review-Token": "x" * 43}, None, 403),
        ("POST", {"X-Review-Token": None}, None, 403),
        ("POST", {"X-Review-Token": "é".encode().decode("latin-1")}, None, 403),
        ("GET", {}, None, 405),
        ("PUT", {}, None, 405),
        ("POST", {"Content-Type": "text/plain"}, None, 422),
        ("POST", {"Content-Type": "application/x-www-form-urlencoded"}, "step=wrong&pair=0", 422),
        ("POST", {}, "x" * (30 << 20), 413),
        ("POST", {}, "{", 422),
        ("POST", {}, '{"step": "delete", "pair": 0}', 422),
        ("POST", {}, '{"step": "wrong"}', 422),
        ("POST", {}, '{"step": "wrong", "pair": 3}', 422),
        ("POST", {}, '{"step": "wrong", "pair": -1}', 422),
        ("POST", {}, '{"step": "wrong", "pair": "../../x"}', 422),
    ],
)
def test_a_request_that_the_page_did_not_send_writes_nothing(
    folder: Path, method: str, changed: dict[str, str | None], body: str | None, status: int
) -> None:
    client, headers = open_page(folder)
    headers = {"Content-Type": "application/json", **headers, **changed}
    encoded = {name: value.encode("latin-1") for name, value in headers.items() if value is not None}
    content = body or '{"step": "wrong", "pair": 0}'
    answer = client.request(method, STEPS, content=content, headers=encoded)
    assert answer.status_code == status and answer.text
    assert not (folder / "audit/decisions.tsv").exists()
    assert client.post(STEPS, json={"step": "wrong", "pair": 0}, headers=open_page(folder)[1]).status_code == 403
    assert client.post(STEPS, content='{"step": "wrong", "pair": 0}', headers=headers_of(client)).status_code == 200


def headers_of(client: TestClient) -> dict[str, str]:
    """Open the review page with `client`, and return the headers that this page sends with a decision: the origin, the
    content type and the present token of the page."""
    (token,) = re.findall('name="token" content="([^"]+)"', client.get("/review").text)
    return {**ORIGIN, "X-Review-Token": token, "Content-Type": "application/json"}


def test_nothing_is_written_without_the_option(gallery: ServedGallery) -> None:
    client = make_client(gallery)
    assert client.get("/review").status_code == client.get("/api/review").status_code == 404
    assert client.post(STEPS, json={"step": "undo"}).status_code == 404


@pytest.mark.parametrize(
    "options", [("--host", "0.0.0.0"), ("--host", "localhost"), ("--allow-host", "photos.example")]
)
def test_other_machines_cannot_review(folder: Path, options: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="--review writes a file, so no other machine may reach it"):
        serve(folder, "--review", *options, index="index/ncca")


def test_a_review_needs_the_audit_of_the_present_collection(run: Path, folder: Path) -> None:
    with pytest.raises(UsageError, match="needs an index in the folder of its run"):
        serve(run, "--review")
    (folder / "audit").rename(folder / "kept")
    with pytest.raises(UsageError, match=r"needs the audit of the run that built .*ncca. Make the audit with"):
        serve(folder, "--review", index="index/ncca")
    (folder / "kept").rename(folder / "audit")
    path = folder / "audit/audit.parquet"
    findings = read_table(path, "audit")[0].to_pylist()
    findings[2]["captions"] = ["a corrected caption"]
    write_table(path, "audit", pa.Table.from_pylist(findings), provenance=by_hand(folder), details={})
    with pytest.raises(UsageError, match="The collection has changed since the audit of .* Run `jointspace audit"):
        serve(folder, "--review", index="index/ncca")


def test_photos_that_were_removed_are_not_shown(folder: Path) -> None:
    run_command("remove", folder / "index/ncca", NAMES[5])
    pairs = open_page(folder)[0].get("/api/review").json()["pairs"]
    assert [pair["image"] for pair in pairs] == [NAMES[3], NAMES[1]]


def test_the_decisions_are_never_a_link(folder: Path) -> None:
    (folder / "private.txt").write_text("a private file")
    (folder / "audit/decisions.tsv").symlink_to(folder / "private.txt")
    with pytest.raises(IntegrityError, match="decisions.tsv is a link"):
        serve(folder, "--review", index="index/ncca")
    (folder / "audit/decisions.tsv").unlink()
    client, headers = open_page(folder)
    (folder / "audit/decisions.tsv").symlink_to(folder / "private.txt")
    answer = client.post(STEPS, json={"step": "wrong", "pair": 0}, headers=headers)
    assert answer.status_code == 422 and (folder / "private.txt").read_text() == "a private file"
    (folder / "audit/decisions.tsv").unlink()
    (folder / "audit").rename(folder / "elsewhere")
    (folder / "audit").symlink_to(folder / "elsewhere")
    with pytest.raises(IntegrityError, match="audit is a link"):
        serve(folder, "--review", index="index/ncca")


def test_a_name_with_line_breaks_and_tabs_is_one_row(tmp_path: Path) -> None:
    """If line breaks and tabs in the name of a photo were not escaped, the name would become a decision about another
    photo."""
    path = tmp_path / "decisions.tsv"
    name = "a\r.png\ta dog\twrong\tnow\nb\t.png"
    decisions = [Decision(name, "", "right", "now"), Decision("b.png", "a dog", "wrong", "now")]
    write_decisions(path, decisions)
    assert read_decisions(path) == decisions


@pytest.mark.parametrize("row", ["a.png\ta dog\tmaybe\tnow", "a.png\twrong\tnow", "\ta dog\twrong\tnow", "words"])
def test_a_row_that_is_no_decision_is_named(tmp_path: Path, row: str) -> None:
    path = tmp_path / "decisions.tsv"
    path.write_text(f"image\tcaption\tdecision\ttime\n\na.png\t\twrong\t\n{row}\n")
    with pytest.raises(InputError, match=r"decisions.tsv row 4 is not a decision"):
        read_decisions(path)


def test_the_command_of_the_page_names_the_program_of_this_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.commands._program", lambda name: f"'my clone/bin/{name}'")
    command = open_page(folder)[0].get("/api/review").json()["command"]
    assert command.startswith("'my clone/bin/jointspace' run ") and command.endswith("config.yaml")
