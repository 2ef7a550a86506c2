"""Every command, option, key and module that README.md and docs/*.md print is one of this version's."""

import configparser
import importlib.util
import re
import shlex
from pathlib import Path

import click
import yaml
from pages import PLACEHOLDER, ROOT, blocks, commands, spans
from snakemake.cli import get_argument_parser, parse_config

from pipeline.config.loading import default_path, merge, read_mapping, validate
from pipeline.config.registry import ENCODERS, named_places
from pipeline.config.text_encoders import TEXT_ENCODERS
from pipeline.plan import machine
from pipeline.run.layout import Layout
from stages.catalogue import COMMANDS, declared
from stages.cli import cli

SNAKEFILE = "\n".join(path.read_text() for path in [ROOT / "Snakefile", *(ROOT / "stages/rules").glob("*.smk")])
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
PRINTED = [values for block in blocks("yaml") if not named_places(values := yaml.safe_load(block.text))]
"""Without those with a user's code, of which test_extending.py has the module."""
CONFIGURATIONS = {f"{values['name']}.yaml": values for values in PRINTED if "name" in values}


def check_jointspace(words: list[str], whole: bool) -> None:
    """A command with options that it has, and values of their types; all that it needs, if it is a `whole` call."""
    if words == ["--help"]:
        return
    while words[0] == "--allow":
        words = words[2:]
    name, *rest = words
    for one in COMMANDS if PLACEHOLDER.fullmatch(name) else [name]:
        assert one in COMMANDS, f"jointspace has no {one}"
        command = cli.get_command(click.Context(cli), one)
        try:
            command.make_context(one, list(rest))
        except click.exceptions.Exit:
            assert rest == ["--help"]
        except click.MissingParameter:
            if whole:
                raise


def check_snakemake(words: list[str], whole: bool) -> None:
    """Targets that the Snakefile makes, and a configuration that it takes."""
    parsed = get_argument_parser().parse_args(words)
    for target in parsed.targets:
        made = re.sub(r"^results/[\w-]+/", "{RUN}/", target)
        known = made in MADE or re.search(rf"^(rule|checkpoint) {target}:", SNAKEFILE, flags=re.M)
        assert known, f"the Snakefile does not make {target}"
    values = DEFAULTS
    for file in map(str, parsed.configfile or ()):
        given = CONFIGURATIONS[file] if file in CONFIGURATIONS else yaml.safe_load((ROOT / file).read_text())
        values = merge(values, given)
    validate(merge(values, parse_config(parsed.config)))
    for profile in parsed.profile or ():
        assert (ROOT / profile / "config.yaml").is_file(), f"no profile {profile}"


def check_pip(words: list[str], whole: bool) -> None:
    """Extras that this distribution has."""
    assert words[0] in ("install", "download")
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


def test_every_printed_command_is_one_of_this_version() -> None:
    wrong = {}
    for command in commands():
        for program, *words in command.calls:
            try:
                if check := CHECKS.get(Path(program).name):
                    check(words, whole=command.language is not None)
            except (Exception, SystemExit) as error:
                wrong[str(command)] = f"{command.text}: {error!r}"
    assert wrong == {}


def test_every_command_in_a_comment_is_one_of_this_version() -> None:
    for path in [ROOT / "Snakefile", *ROOT.glob("config/**/*.yaml"), *ROOT.glob("profiles/*/config.yaml")]:
        for text in re.findall(r"^#.*?(snakemake [a-z]+ --.+?)(?: {3,}.*)?$", path.read_text(), flags=re.M):
            check_snakemake(shlex.split(text.replace("--configfile my.yaml", ""))[1:], whole=True)


def test_printed_options_and_modules_are_there() -> None:
    context = click.Context(cli)
    options = {option for name in COMMANDS for one in cli.get_command(context, name).params for option in one.opts}
    options |= {option for one in cli.params for option in one.opts} | set(get_argument_parser()._option_string_actions)
    rooms = ("pipeline", "stages", "tests", "benchmarks", "examples")
    files = [f"/{path.relative_to(ROOT)}" for room in rooms for path in (ROOT / room).rglob("*.py")]
    wrong = []
    for span in spans():
        if span.text.startswith("--") and span.text.split()[0] not in options:
            wrong.append(f"{span}: no command has {span.text}")
        elif re.fullmatch(r"[\w/]+\.py", span.text) and not PLACEHOLDER.search(span.text):
            wrong += [f"{span}: no {span.text}"] if not any(file.endswith(f"/{span.text}") for file in files) else []
    assert wrong == []


def test_every_extra_that_is_named_to_a_user_can_be_installed_by_that_name() -> None:
    """Spelt as pip normalises names (PEP 685): versions before 23.3 find no other."""
    named = {spec.extra for spec in (*ENCODERS, *TEXT_ENCODERS) if spec.extra} | machine.EXTRAS.keys()
    assert named <= EXTRAS
    assert all(re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name) for name in EXTRAS)
