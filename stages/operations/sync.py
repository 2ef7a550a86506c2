"""`sync`: a run to an object store, and back."""

from pathlib import Path

import click

from stages.commands import config_option, json_option


@click.command("sync")
@click.argument("source")
@click.argument("target")
@json_option
@config_option
def command(source: str, target: str, as_json: bool, config_path: Path | None) -> None:
    """Send a run's finished artefacts from the folder SOURCE to s3:// or gs://, or fetch them into the folder TARGET.

    Only what has changed is moved, and everything is verified; a sync that was interrupted goes on.
    """
    import logging
    from dataclasses import asdict
    from functools import partial

    from tqdm import tqdm

    from pipeline import config
    from pipeline.errors import UsageError
    from pipeline.printable import printable_json
    from pipeline.remote.paths import LISTED, RemotePath, check_url, is_url
    from pipeline.remote.scratch import Scratch
    from pipeline.storage.locks import hold
    from pipeline.storage.syncing import download, upload

    up = is_url(target)
    if up == is_url(source):
        raise UsageError("sync: one side is a folder, and the other a URL such as s3://bucket/runs/holiday")
    url, folder = (target, Path(source)) if up else (source, Path(target))
    try:
        check_url("sync", url)
    except ValueError as error:
        raise UsageError(str(error)) from error
    store = RemotePath(url)
    if store.scheme not in LISTED:
        raise UsageError(f"sync: {url} must be one of {', '.join(f'{one}://' for one in LISTED)}")
    scratch = Scratch.of(config.load(config_path).remote)
    progress = partial(tqdm, desc="sync", unit=" files", disable=None)
    with hold(folder):
        done = upload(folder, store, scratch, progress) if up else download(store, folder, scratch, progress)
    if as_json:
        click.echo(printable_json(asdict(done)))
    log = logging.getLogger(__name__)
    log.info("%d files moved, %d removed, %d were there", len(done.moved), len(done.removed), done.kept)
    if done.unfinished:
        log.warning("%d files are not finished and stay here, such as %s", len(done.unfinished), done.unfinished[0])
