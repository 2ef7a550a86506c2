"""`apply`: indexes new photos with the model of an existing index."""

import json
import logging
from pathlib import Path

import click

from stages.commands import CONFIG, FOLDER, PATH, json_option, output, say_next


@click.command("apply")
@click.argument("index_folder", type=FOLDER, metavar="INDEX")
@click.argument("photographs", type=PATH, metavar="PHOTOS")
@output("New folder for the index and its intermediate files, which `search` accepts as INDEX.")
@click.option("--name", help="Name of the new index. [default: the name of the folder of --output]")
@click.option(
    "-c", "--config", "config_path", type=CONFIG, metavar="FILE",
    help="Configuration whose keys override the settings of the command.",
)  # fmt: skip
@json_option
def command(
    index_folder: Path,
    photographs: Path,
    output: Path,
    name: str | None,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Index new photos with the model of an existing index.

    PHOTOS is a folder, a tar shard, or a table. Nothing is trained, and no captions are needed. Run the same command
    again to resume, or to index photos that were added to PHOTOS.
    """
    from pipeline.config import loading
    from pipeline.index.text_index import prepare_text_index
    from pipeline.run.layout import Layout
    from pipeline.run.reading.application import apply_index
    from pipeline.run.reading.results import example_search, search_command
    from pipeline.storage.files import plain
    from pipeline.storage.locks import hold
    from pipeline.storage.stored_index import StoredIndex, open_index
    from stages.catalogue import declared

    changes = loading.read_mapping(config_path) if config_path else {}
    model = plain(open_index(index_folder, added=False).card.model, index_folder)
    with hold(Layout(output).index(model).path):  # `add` and `remove` cannot change the index while it is locked.
        shard = apply_index(declared(), index_folder, photographs, output, name, changes)
        prepare_text_index(output)
    assert shard is not None  # `ingest` refuses a folder without a readable photo.
    count = shard.card.images.count if shard.card.images else 0
    logging.getLogger(__name__).info("The index in %s has %d photos", output, count)
    if as_json:
        search = example_search(StoredIndex([shard]))
        click.echo(json.dumps({"bundle": str(output), "photographs": count, "search": search}))
    else:
        say_next(lambda: search_command(output))
