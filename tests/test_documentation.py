"""Tests which show that README.md and docs/*.md describe this version.

The programs on the pages run. Their commands, options, keys, modules and links exist. Statements that a program can
check are true.
"""

import configparser
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import forked_programs
import numpy as np
import pytest
import yaml
from synthetic_run import build_bundle, make_run
from test_glossary import literals

from pipeline.config.keys import rows
from pipeline.config.loading import default_path, merge, read_mapping, validate
from pipeline.config.registry import ENCODERS, named_import_paths
from pipeline.errors import JointspaceError, UsageError
from pipeline.models.linear.hubness import METHODS
from pipeline.run import machine
from pipeline.run.layout import Layout
from pipeline.serve.answers import ImagesAnswer
from pipeline.storage.shards import FEATURES, write_shard
from stages.catalogue import COMMANDS, declared, render
from stages.cli import cli, stage

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PROGRAMS_IN_PROSE = ("snakemake", "jointspace", "python", "python3", "pip", "pytest", "dask", "cp")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b")
"""The pattern of a placeholder in a command, such as MODEL or COMMAND."""
BLOCK = r"^```(?P<language>\w*)\n(?P<block>.*?)^```$"
SPAN = r"(?<!`)`(?P<span>[^`\n]+(?:\n[^`\n]+)*)`(?!`)"
CODE = re.compile(f"{BLOCK}|{SPAN}", re.M | re.S)


def code() -> Iterator[tuple[str, str | None, str]]:
    """Yield the place (`PAGE:LINE`), the language and the text of each block of code on all pages, and of each code
    span in prose, whose language is None.
    """
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in CODE.finditer(text):
            where = f"{page.name}:{text.count(chr(10), 0, found.start()) + 1}"
            if found["span"] is None:
                yield where, found["language"], found["block"]
            else:
                yield where, None, " ".join(found["span"].split())


ALL_CODE = list(code())


def commands() -> Iterator[tuple[str, str, bool]]:
    """Yield each command on the pages: its place (`PAGE:LINE`), the command, and whether it is a whole line of a shell
    block and not a code span in prose.
    """
    for where, language, text in ALL_CODE:
        if language in ("sh", "bash", "console"):
            for line in re.findall(r"(?:[^\n]*\\\n)*[^\n]+", text):
                if command := " ".join(line.replace("\\\n", " ").split(" #")[0].split()):
                    yield where, command, True
        elif language is None and " " in text and Path(text.split()[0]).name in PROGRAMS_IN_PROSE:
            yield where, text, False


def calls(command: str) -> list[list[str]]:
    """Return the words of each program that a command line starts. Programs are separated by `&&`. The sign `&` at the
    end of a line and a redirection (`> FILE`) are left out.
    """
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
"""The paths of the commit records that the stages without shards write. `{RUN}` stands for the folder of the run. Other
names in braces, such as `{model}`, stand for the arguments of a stage.
"""
CONFIGURATIONS_ON_PAGES = [
    values
    for _, language, text in ALL_CODE
    if language == "yaml" and not named_import_paths(values := yaml.safe_load(text))
]
"""The configurations on the pages, as mappings. A configuration that names a user's module is left out, because
test_extending.py checks it.
"""
CONFIGURATIONS = {f"{values['name']}.yaml": values for values in CONFIGURATIONS_ON_PAGES if "name" in values}


def check_jointspace(words: list[str], whole: bool) -> None:
    """Check a call of jointspace. `words` are the words after `jointspace`: a command that exists, options that the
    command has under these names, and values that the options accept. A placeholder, such as COMMAND, stands for every
    command.

    If the call is a `whole` line of a shell block, it must also have all arguments that the command needs.
    """
    group = cli
    while words[0] == "--allow":
        words = words[2:]
    if words[0] == "--debug":
        words = words[1:]
    if words[0] == "stage":
        group = stage
        words = words[1:]
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
    """Check a call of Snakemake. `words` are the words after `snakemake`: the Snakefile must make the targets, and the
    configuration and the profiles must exist and be valid. `whole` is not used.
    """
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
    """Check a call of pip. `words` are the words after `pip`: the first must be `install`, `download` or `wheel`, and
    the extras must exist in setup.cfg. `whole` is not used.
    """
    assert words[0] in ("install", "download", "wheel")
    for named in re.findall(r"\[(\w[\w-]*)\]", " ".join(words)):
        assert named in EXTRAS, f"no extra {named}"


def check_python(words: list[str], whole: bool) -> None:
    """Check a call of Python. `words` are the words after `python`: the module after `-m` must exist, or the script
    must exist and contain all options of the call.

    A script whose name has a placeholder is not checked. `whole` is not used.
    """
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


def test_configurations_on_pages_are_valid() -> None:
    assert len(CONFIGURATIONS_ON_PAGES) > 20 and all(validate(values) for values in CONFIGURATIONS_ON_PAGES)


def test_every_command_on_a_page_exists() -> None:
    wrong = {}
    for where, command, whole in commands():
        for program, *words in calls(command):
            try:
                if check := CHECKS.get(Path(program).name):
                    check(words, whole)
            except (Exception, SystemExit) as error:
                wrong[where] = f"{command}: {error!r}"
    assert wrong == {}


def test_every_command_in_a_comment_exists() -> None:
    for path in [ROOT / "Snakefile", *ROOT.glob("config/**/*.yaml"), *ROOT.glob("profiles/*/config.yaml")]:
        for text in re.findall(r"^#.*?(snakemake [a-z]+ --.+?)(?: {3,}.*)?$", path.read_text(), flags=re.M):
            check_snakemake(shlex.split(text.replace("--configfile my.yaml", ""))[1:], whole=True)


def test_options_and_modules_on_pages_exist() -> None:
    from snakemake.cli import get_argument_parser

    context = click.Context(cli)
    parameters = [one for name in COMMANDS for one in cli.get_command(context, name).params]
    options = {option for one in parameters for option in (*one.opts, *one.secondary_opts)}
    options |= {option for one in cli.params for option in one.opts} | set(get_argument_parser()._option_string_actions)
    folders = ("pipeline", "stages", "tests", "benchmarks", "examples")
    files = [f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.py")]
    wrong = []
    for where, language, text in ALL_CODE:
        if language is None and text.startswith("--") and text.split()[0] not in options:
            wrong.append(f"{where}: no command has {text}")
        elif language is None and re.fullmatch(r"[\w/]+\.py", text) and not PLACEHOLDER.search(text):
            wrong += [] if any(file.endswith(f"/{text}") for file in files) else [f"{where}: no {text}"]
    assert wrong == []


def test_every_extra_that_is_named_to_a_user_can_be_installed_by_that_name() -> None:
    """The names of extras in setup.cfg and in messages are normalised (PEP 685), because pip before 23.3 does not find
    other spellings.
    """
    named = {spec.extra for spec in ENCODERS if spec.extra} | machine.EXTRAS.keys()
    assert named <= EXTRAS == machine.EXTRAS.keys()
    assert all(re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name) for name in EXTRAS)


PROGRAMS = re.findall(r"^## (.+?)\n+```python\n(.+?)```", (ROOT / "docs" / "artefacts.md").read_text(), re.S | re.M)
ANSWERS = {
    "Features with h5py": "(24, 3) float32 [0 1 2]",
    "Paths of photos with pyarrow": "24 [{'image_id': 0, 'path': 'dog-0.png', 'split': 'train'}]",
    "Nearest photos with faiss": "[('dog-0.png', ",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("run"))
    build_bundle(folder)
    arrays = {"features": np.ones((24, 3), np.float32), "image_id": np.arange(24)}
    write_shard(folder / "features" / "shard-00000.h5", FEATURES, arrays, rows=24, details={})
    return folder


@pytest.mark.parametrize(("title", "program"), PROGRAMS, ids=[title for title, _ in PROGRAMS])
def test_the_programs_of_the_documentation_run(
    run: Path, title: str, program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    places = {"Features": "features", "Paths": "manifest", "Nearest": "bundle"}
    folder = next(run / place for first, place in places.items() if title.startswith(first))
    monkeypatch.setattr(sys, "argv", ["program.py", str(folder)])
    exec(program, {"__name__": "__main__"})  # noqa: S102
    assert capsys.readouterr().out.startswith(ANSWERS[title])


def test_the_page_of_stages_is_generated_and_has_every_command() -> None:
    page = (ROOT / "docs/stages.md").read_text()
    assert render() == page
    assert sorted(re.findall(r"^\| `([\w-]+)`", page, flags=re.M)) == sorted(COMMANDS)


def test_links_inside_the_documentation_exist() -> None:
    for page in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.slow
def test_the_documentation_is_a_site_without_a_broken_link(tmp_path: Path) -> None:
    """mkdocs finds no broken link or anchor. Every page is in the navigation, the tutorial refers to no other site
    than the site of the theme, and the page of the configuration has a heading for each key.
    """
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    built = tmp_path / "site"
    words = ["build", "--strict", "--config-file", str(ROOT / "mkdocs.yml"), "-d", str(built)]
    command = [sys.executable, "-m", "mkdocs", *words]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "not included in the" not in result.stderr, result.stderr
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= {one.name for one in built.iterdir()}
    assert not re.search(r'(src|href)="https?://(?!squidfunk)', (built / "tutorial/index.html").read_text())
    headings = re.findall(r'<h3 id="([^"]+)">', (built / "configuration/index.html").read_text())
    assert headings == list(dict.fromkeys(".".join(row.path) for row in rows()))


def test_the_functions_from_a_photo_to_the_index_exist() -> None:
    page = (ROOT / "docs/extending.md").read_text().partition("## From photo to index")[2]
    for file, names in re.findall(r"`([\w/]+\.py):(\w[\w.]*`(?:, `\w[\w.]*`)*)", page):
        path = ROOT / file if file.startswith(("stages/", "pipeline/")) else ROOT / "pipeline" / file
        text = path.read_text()
        for name in re.findall(r"[\w.]*\w", names):
            missing = [part for part in name.split(".") if not re.search(rf"^ *(def|class) {part}\b", text, flags=re.M)]
            assert name.endswith(".py") or not missing, f"{file} has no {name}"


def test_every_key_has_a_heading_on_the_page_of_the_configuration() -> None:
    """The hook of mkdocs in docs/hooks.py writes these headings in place of a marker on docs/configuration.md."""
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs/hooks.py")
    assert spec and spec.loader
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = hooks.on_page_markdown((ROOT / "docs/configuration.md").read_text(), page=None)
    headings = re.findall(r'<h3 id="([^"]+)"><code>([^<]+)</code></h3>', page)
    assert all(anchor == name for anchor, name in headings)
    named = {anchor for anchor, _ in headings}
    assert len(named) == len(headings)
    marked = {
        name for name, text in re.findall(r"<code>([^<]+)</code></h3>\n+<p>(.*)</p>", page) if "(required)" in text
    }
    assert {"documents.NAME.simulate.tag_words", "ensembles.NAME.members"} <= marked
    assert marked.isdisjoint({"name", "collection", "encoders[].kind", "encoders[].dimensions"})
    defaults = DEFAULTS
    expected = {key for key in defaults} | {f"{key}.{below}" for key in defaults for below in _keys(defaults[key])}
    assert expected - {name for name in expected if re.match(r"(documents|variants)\.", name)} <= named


def _keys(value: object) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def test_one_tagline_describes_the_project() -> None:
    tagline = SETUP["metadata"]["description"]
    assert (ROOT / "README.md").read_text().split("\n\n")[1].startswith(f"{tagline}.")
    assert (ROOT / "docs/index.md").read_text().split("\n\n")[1].startswith(f"{tagline}.")
    assert f"site_description: {tagline}\n" in (ROOT / "mkdocs.yml").read_text()
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["title"].lower() == f"jointspace: {tagline}".lower()
    assert f"{tagline}." in " ".join((cli.help or "").split())


def test_every_command_in_a_message_exists() -> None:
    """The test checks commands that follow a backtick or a colon in the string literals of the project. Values in a
    message count as X.
    """
    wrong = []
    texts = list(literals("jointspace", "pipeline", "stages", code=True))
    found = [
        (place, words.split())
        for place, text in texts
        for words in re.findall(r"(?:`|: )jointspace ([a-z][a-z-]+(?: [^`;,()]*)?)", text)
    ]
    for place, words in found:
        command: click.Command | None = cli
        rest = iter([word for word in words if not word.startswith("-")])
        while isinstance(command, click.Group) and (name := next(rest, None)):
            command = command.get_command(click.Context(command), name)
        options = {option for one in command.params for option in one.opts + one.secondary_opts} if command else set()
        missing = [word for word in words if re.fullmatch("--[a-z-]+", word) and word not in {*options, "--help"}]
        if any(map(PLACEHOLDER.fullmatch, words)) and words[0] == "stage":
            continue
        wrong += [f"{place}: {' '.join(words)}"] if command is None or missing else []
    assert len(found) > 10 and wrong == []


def numbers(row: str, place: int = 0) -> list[float]:
    """Return one number of each cell of a row of a Markdown table: the number at position `place` among the numbers of
    the cell that have one decimal. The first cell and cells without such numbers are left out.
    """
    return [float(found[place]) for cell in row.split("|")[2:] if (found := re.findall(r"\d+\.\d", cell))]


def test_the_text_about_joining_two_encoders_fits_its_table() -> None:
    section = (ROOT / "docs/measured.md").read_text().partition("### Other ways to join two encoders")[2]
    section = section.partition("\n### ")[0]
    rows = {row.split("|")[1].strip(): row for row in section.splitlines() if row.startswith("| ")}
    ncca = numbers(rows["`ncca`"])
    corrected = numbers(rows["`ncca`"], 1)
    csa = numbers(rows["CSA without ridges (Li, Chinchali and Topcu 2025)"])
    maps = numbers(rows["`ridge-cosine`"]), numbers(rows["`procrustes` (Schönemann 1966)"])
    best_map = [max(pair) for pair in zip(*maps, strict=True)]
    over_map = [a - b for a, b in zip(ncca, best_map, strict=True)]
    over_csa = [a - b for a, b in zip(ncca, csa, strict=True)]
    words = " ".join(section.split())
    assert f"{min(over_map):.0f} to {max(over_map):.0f} points ahead of the best linear map" in words
    assert f"It is {min(over_csa):.0f} to {max(over_csa) + 1e-6:.0f} points ahead of CSA" in words
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"add up to {corrected[2]:.0f} with 1,000 training pairs and to {corrected[5]:.0f} with 25,000" in readme
    models = " ".join((ROOT / "docs/models.md").read_text().split())
    sums = f"{corrected[2]:.0f} with 1,000 training pairs, and {corrected[5]:.0f} with 25,000"
    assert f"the sum of six recalls is {sums}" in models


def test_the_best_rows_of_the_readme_are_those_that_were_measured() -> None:
    """Four rows of README.md have recalls. The recalls of each direction also stand in docs/measured.md, with the same
    decimals.
    """
    measured = (ROOT / "docs/measured.md").read_text()
    measured = re.sub(r" \([\d.]+-[\d.]+\)|\*\*", "", measured)
    recalls = re.compile(r"\d+\.\d / \d+\.\d / \d+\.\d")
    rows_of = [row for row in (ROOT / "README.md").read_text().splitlines() if row.startswith(("| `", "| plus"))]
    checked = [(row, found) for row in rows_of if (found := recalls.findall(row))]
    assert len(checked) == 4
    for row, found in checked:
        assert all(values in measured for values in found), row


def test_the_advice_on_the_number_of_captions_has_the_measured_recalls() -> None:
    section = (ROOT / "docs/models.md").read_text().partition("## How many captions do I need?")[2]
    measured = (ROOT / "docs/measured.md").read_text().partition("### A collection of a special kind")[2]
    for collection, encoders in (("hieroglyphs", "three networks"), ("Flickr8k", "EfficientNet-Lite2")):
        (advice,) = re.findall(rf"^\| {collection}, \S+ \w+ are searched \|(.+)", section, flags=re.M)
        (row,) = re.findall(rf"^\| {collection}, {encoders}: caption to photo \|(.+)", measured, flags=re.M)
        assert advice == row


def test_every_table_of_measurements_has_its_method() -> None:
    """Each section of docs/measured.md that has a table also has a paragraph that begins with *Method.*"""
    page = (ROOT / "docs/measured.md").read_text()
    sections = [one for one in re.split(r"\n##+ ", page)[1:] if "\n|---" in one]
    assert len(sections) > 10
    assert [one.splitlines()[0] for one in sections if "*Method.*" not in one] == []


def test_each_part_that_contributing_names_has_its_steps() -> None:
    named = re.search(r"for each kind of part \(([^)]+) and others\)", (ROOT / "CONTRIBUTING.md").read_text())
    assert named
    headings = re.findall(r"^## An? (\w+)", (ROOT / "docs/extending.md").read_text(), flags=re.M)
    assert set(re.findall(r"\w+", named[1])) <= set(headings)


def test_the_automatic_hubness_correction_tries_the_documented_methods() -> None:
    """docs/models.md and the description of the key `hubness` name the methods that `auto` tries. These are all methods
    except `csls`, because `nnn` tries the values of `csls` too.
    """
    tried = " and ".join(f"`{name}`" for name in METHODS if name != "csls")
    assert f"| `auto` | the best of {tried} on dev" in (ROOT / "docs/models.md").read_text()
    meant = " or ".join(name for name in METHODS if name != "csls")
    assert any(
        f"auto ({meant}, whichever is better on dev" in row.sentence for row in rows() if row.path[-1] == "hubness"
    )


def test_the_two_defaults_of_sorting_by_the_mean_are_documented() -> None:
    """By default, the command `search` sorts the 20 nearest photos by their distance to the mean, and the server sorts
    none.
    """
    command = cli.get_command(click.Context(cli), "search")
    assert command
    (option,) = (one for one in command.params if {"--among", "--rerank"} & set(one.opts))
    page = " ".join((ROOT / "docs/searching.md").read_text().split())
    assert f"the {option.default} nearest photos are then sorted by the distance of their vectors to the mean" in page
    assert DEFAULTS["serve"]["among"] == 0 and "page does not sort them unless `serve.among`" in page


def test_the_example_of_an_answer_has_the_fields_of_the_api() -> None:
    (example,) = (text for where, language, text in ALL_CODE if where.startswith("serving.md") and language == "json")
    answer = ImagesAnswer.model_validate(json.loads(example))
    assert answer.model_dump(mode="json") == json.loads(example)


def test_every_exit_code_is_documented(tmp_path: Path) -> None:
    """The table in docs/recovery.md has the exit code of every error class. It also has 0 for success and 130 for an
    interrupt, which have no error class.
    """
    page = (ROOT / "docs/recovery.md").read_text()
    meanings = dict(re.findall(r"^\| (\d+) \| (.+) \|$", page, flags=re.M))
    kinds: list[type[JointspaceError]] = [JointspaceError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {str(kind.exit_code) for kind in kinds} | {"0", "130"} == meanings.keys()
    assert meanings[str(UsageError.exit_code)].startswith("The command was used wrongly")
    assert forked_programs.jointspace(tmp_path, "search", "--no-such-option").returncode == UsageError.exit_code
