"""`apply`: any photographs, indexed in the space of a trained index."""

import json
import logging
from pathlib import Path

import click

from stages.commands import FILE, FOLDER, PATH, json_option, output, say_next


@click.command("apply")
@click.argument("bundle_folder", type=FOLDER, metavar="INDEX")
@click.argument("photographs", type=PATH, metavar="PHOTOS")
@output("Folder of the new index and of what it is made from; `search --index` takes it.")
@click.option("--name", help="Name of the new index. [default: the name of --output]")
@click.option("--config", "config_path", type=FILE, help="Configuration to lay over what the command chooses.")
@json_option
def command(
    bundle_folder: Path,
    photographs: Path,
    output: Path,
    name: str | None,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Index PHOTOS (a folder, tar shards or a table) with the model of INDEX, which a run made.

    Nothing is trained and no caption is needed. Run the same command again to resume, or to index photos added since.
    """
    from pipeline.config import loading
    from pipeline.run.layout import Layout
    from pipeline.run.reading.application import apply_bundle
    from pipeline.run.reading.results import example_search, search_command
    from pipeline.storage.bundles import open_bundle
    from pipeline.storage.files import plain
    from pipeline.storage.locks import hold
    from stages.catalogue import declared

    changes = loading.read_mapping(config_path) if config_path else {}
    model = plain(open_bundle(bundle_folder, added=False).card["model"], bundle_folder)
    with hold(Layout(output).index(model).path):  # against `add` and `remove`
        bundle = apply_bundle(declared(), bundle_folder, photographs, output, name, changes)
    assert bundle is not None  # since no photo is known or removed
    logging.getLogger(__name__).info("%d photos", bundle.card["images"]["count"])
    if as_json:
        count, search = bundle.card["images"]["count"], example_search(bundle)
        click.echo(json.dumps({"bundle": str(output), "photographs": count, "search": search}))
    else:
        say_next(lambda: search_command(output))
