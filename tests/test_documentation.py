"""README.md and docs/*.md fit this version: programs run as printed, and commands, options, keys, modules and link
targets exist."""

import configparser
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
import yaml
from made_up import build_bundle, make_run

from pipeline.config.loading import default_path, merge, read_mapping, validate
from pipeline.config.registry import ENCODERS, named_places
from pipeline.plan import machine
from pipeline.run.layout import Layout
from pipeline.storage.shards import FEATURES, write_shard
from stages.catalogue import COMMANDS, declared, render
from stages.cli import cli, stage

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PRINTED_PROGRAMS = ("snakemake", "jointspace", "python", "python3", "pip", "pytest", "dask", "cp")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b")
"""A word of a command that stands for something else: MODEL, COMMAND."""
BLOCK = r"^```(?P<language>\w*)\n(?P<block>.*?)^```$"
SPAN = r"(?<!`)`(?P<span>[^`\n]+(?:\n[^`\n]+)*)`(?!`)"
CODE = re.compile(f"{BLOCK}|{SPAN}", re.M | re.S)


def code() -> Iterator[tuple[str, str | None, str]]:
    """Yield each block of code on all pages as its place, language and text. A span in prose has no language."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in CODE.finditer(text):
            where = f"{page.name}:{text.count(chr(10), 0, found.start()) + 1}"
            if found["span"] is None:
                yield where, found["language"], found["block"]
            else:
                yield where, None, " ".join(found["span"].split())


PRINTED_CODE = list(code())


def commands() -> Iterator[tuple[str, str, bool]]:
    """Yield each printed command: its place, the command, and whether it is a whole line of a shell block."""
    for where, language, text in PRINTED_CODE:
        if language in ("sh", "bash", "console"):
            for line in re.findall(r"(?:[^\n]*\\\n)*[^\n]+", text):
                if command := " ".join(line.replace("\\\n", " ").split(" #")[0].split()):
                    yield where, command, True
        elif language is None and " " in text and Path(text.split()[0]).name in PRINTED_PROGRAMS:
            yield where, text, False


def calls(command: str) -> list[list[str]]:
    """The words of each program that a command starts, without `&`, and without `>` and what follows."""
    found: list[list[str]] = [[]]
    for word in shlex.split(command):
        if word == "&&":
            found.append([])
        elif word != "&":
            found[-1].append(word)
    return [words[: words.index(">")] if ">" in words else words for words in found]


DEFAULTS = read_mapping(default_path())
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
EXTRAS = set(SETUP["options.extras_require"])
MADE = {
    str(one.commit)
    for stage in declared().values()
    if not stage.sharded
    for one in stage.outputs(Layout(Path("{RUN}")), *(f"{{{name}}}" for name in stage.names))
}
"""Targets of rules, as patterns."""
PRINTED = [
    values
    for _, language, text in PRINTED_CODE
    if language == "yaml" and not named_places(values := yaml.safe_load(text))
]
"""Without those with a user's code, of which test_extending.py has the module."""
CONFIGURATIONS = {f"{values['name']}.yaml": values for values in PRINTED if "name" in values}


def check_jointspace(words: list[str], whole: bool) -> None:
    """Check that a command exists, and that it has these options, by their present names, and accepts their values.

    A `whole` call must also have all arguments that the command needs.
    """
    group = cli
    while words[0] == "--allow":
        words = words[2:]
    if words[0] == "stage":
        group, words = stage, words[1:]
    if words in ([], ["--help"]):
        return
    name, *rest = words
    known = group.list_commands(None)
    for one in known if PLACEHOLDER.fullmatch(name) else [name]:
        assert one in known, f"jointspace has no {one}"
        command = group.get_command(None, one)
        former = {word.partition("=")[0] for word in rest} & getattr(command, "former", {}).keys()
        assert not former, f"{former} has a new name"
        try:
            command.make_context(one, list(rest))
        except click.exceptions.Exit:
            assert rest == ["--help"]
        except click.MissingParameter:
            if whole:
                raise


def check_snakemake(words: list[str], whole: bool) -> None:
    """Targets that the Snakefile makes, and a configuration that it takes."""
    from snakemake.cli import get_argument_parser, parse_config

    parsed = get_argument_parser().parse_args(words)
    for target in parsed.targets:
        made = re.sub(r"^results/[\w-]+/", "{RUN}/", target)
        assert made in MADE or target in {"all", *declared()}, f"the Snakefile does not make {target}"
    values = DEFAULTS
    for file in map(str, parsed.configfile or ()):
        given = CONFIGURATIONS[file] if file in CONFIGURATIONS else yaml.safe_load((ROOT / file).read_text())
        values = merge(values, given)
    validate(merge(values, parse_config(parsed.config)))
    for profile in parsed.profile or ():
        assert (ROOT / profile / "config.yaml").is_file(), f"no profile {profile}"


def check_pip(words: list[str], whole: bool) -> None:
    """Extras that this distribution has."""
    assert words[0] in ("install", "download", "wheel")
    for named in re.findall(r"\[(\w[\w-]*)\]", " ".join(words)):
        assert named in EXTRAS, f"no extra {named}"


def check_python(words: list[str], whole: bool) -> None:
    """A module or a file that is there, with options that it reads."""
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]), f"no module {words[1]}"
    elif not PLACEHOLDER.search(words[0]):
        text = (ROOT / words[0]).read_text()
        for option in (word for word in words if word.startswith("--")):
            assert re.search(rf"\b{option.strip('-')}\b", text), f"{words[0]} has no {option}"


CHECKS = {
    "jointspace": check_jointspace, "snakemake": check_snakemake, "pip": check_pip,
    "python": check_python, "python3": check_python,
}  # fmt: skip


def test_printed_configurations_can_be_done() -> None:
    assert len(PRINTED) > 20 and all(validate(values) for values in PRINTED)


def test_every_printed_command_is_one_of_this_version() -> None:
    wrong = {}
    for where, command, whole in commands():
        for program, *words in calls(command):
            try:
                if check := CHECKS.get(Path(program).name):
                    check(words, whole)
            except (Exception, SystemExit) as error:
                wrong[where] = f"{command}: {error!r}"
    assert wrong == {}


def test_every_command_in_a_comment_is_one_of_this_version() -> None:
    for path in [ROOT / "Snakefile", *ROOT.glob("config/**/*.yaml"), *ROOT.glob("profiles/*/config.yaml")]:
        for text in re.findall(r"^#.*?(snakemake [a-z]+ --.+?)(?: {3,}.*)?$", path.read_text(), flags=re.M):
            check_snakemake(shlex.split(text.replace("--configfile my.yaml", ""))[1:], whole=True)


def test_printed_options_and_modules_are_there() -> None:
    from snakemake.cli import get_argument_parser

    context = click.Context(cli)
    options = {option for name in COMMANDS for one in cli.get_command(context, name).params for option in one.opts}
    options |= {option for one in cli.params for option in one.opts} | set(get_argument_parser()._option_string_actions)
    rooms = ("pipeline", "stages", "tests", "benchmarks", "examples")
    files = [f"/{path.relative_to(ROOT)}" for room in rooms for path in (ROOT / room).rglob("*.py")]
    wrong = []
    for where, language, text in PRINTED_CODE:
        if language is None and text.startswith("--") and text.split()[0] not in options:
            wrong.append(f"{where}: no command has {text}")
        elif language is None and re.fullmatch(r"[\w/]+\.py", text) and not PLACEHOLDER.search(text):
            wrong += [] if any(file.endswith(f"/{text}") for file in files) else [f"{where}: no {text}"]
    assert wrong == []


def test_every_extra_that_is_named_to_a_user_can_be_installed_by_that_name() -> None:
    """Spelt as pip normalises names (PEP 685): versions before 23.3 find no other."""
    named = {spec.extra for spec in ENCODERS if spec.extra} | machine.EXTRAS.keys()
    assert named <= EXTRAS == machine.EXTRAS.keys()
    assert all(re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name) for name in EXTRAS)


PROGRAMS = re.findall(r"^## (.+?)\n+```python\n(.+?)```", (ROOT / "docs" / "artefacts.md").read_text(), re.S | re.M)
ANSWERS = {
    "Features with h5py": "(24, 3) float32 [0 1 2]",
    "Paths of photos with pyarrow": "24 [{'image_id': 0, 'path': 'dog-0.png', 'split': 'train'}]",
    "Nearest photos with faiss": "[('dog-0.png', ",
    "Several index shards with faiss": "[(1.0, 'dog-0.png'), ",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("run"))
    build_bundle(folder, {"index": {"bundles": 3}}, output="several")
    build_bundle(folder)
    arrays = {"features": np.ones((24, 3), np.float32), "image_id": np.arange(24)}
    write_shard(folder / "features" / "shard-00000.h5", FEATURES, arrays, rows=24, details={})
    return folder


@pytest.mark.parametrize(("title", "program"), PROGRAMS, ids=[title for title, _ in PROGRAMS])
def test_the_programs_of_the_documentation_run(
    run: Path, title: str, program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    places = {"Features": "features", "Paths": "manifest", "Nearest": "bundle", "Several": "several"}
    folder = next(run / place for first, place in places.items() if title.startswith(first))
    monkeypatch.setattr(sys, "argv", ["program.py", str(folder)])
    exec(program, {"__name__": "__main__"})  # noqa: S102
    assert capsys.readouterr().out.startswith(ANSWERS[title])


def test_the_page_of_stages_is_what_its_generator_prints_and_has_every_command() -> None:
    page = (ROOT / "docs/stages.md").read_text()
    assert render() == page
    assert sorted(re.findall(r"^\| `([\w-]+)`", page, flags=re.M)) == sorted(COMMANDS)


def test_links_inside_the_documentation_lead_somewhere() -> None:
    for page in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.slow
def test_the_documentation_is_a_site_without_a_broken_link(tmp_path: Path) -> None:
    """Anchors too; every page is in the navigation."""
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    built = tmp_path / "site"
    words = ["build", "--strict", "--config-file", str(ROOT / "mkdocs.yml"), "-d", str(built)]
    command = [sys.executable, "-m", "mkdocs", *words]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "not included in the" not in result.stderr, result.stderr
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= {one.name for one in built.iterdir()}
    assert not re.search(r'(src|href)="https?://(?!squidfunk)', (built / "tutorial/index.html").read_text()), (
        "from elsewhere"
    )


def test_the_functions_of_the_way_from_a_photo_to_the_index_are_there() -> None:
    page = (ROOT / "docs/extending.md").read_text().partition("## From photo to index")[2]
    for file, names in re.findall(r"`([\w/]+\.py):(\w[\w.]*`(?:, `\w[\w.]*`)*)", page):
        path = ROOT / file if file.startswith(("stages/", "pipeline/")) else ROOT / "pipeline" / file
        text = path.read_text()
        for name in re.findall(r"[\w.]*\w", names):
            missing = [part for part in name.split(".") if not re.search(rf"^ *(def|class) {part}\b", text, flags=re.M)]
            assert name.endswith(".py") or not missing, f"{file} has no {name}"
