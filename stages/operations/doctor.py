"""`doctor`: what this machine has of what the pipeline needs, in one screen."""

from pathlib import Path

import click

from stages.commands import PATH, config_option, json_option


@click.command("doctor")
@click.option("--folder", type=PATH, help="Check the free space of this folder's disk. [default: results_root]")
@json_option
@config_option
def command(folder: Path | None, as_json: bool, config_path: Path | None) -> None:
    """Check devices, BLAS, faiss, free disk and memory, and extras; exits with 1 if something needed is missing."""
    import sys

    from pipeline.config import loading
    from pipeline.plan.machine import examine
    from pipeline.printable import printable_json

    findings = examine(folder or Path(loading.load(config_path).results_root))
    missing = [finding.what for finding in findings if finding.mark == "MISS"]
    if as_json:
        click.echo(printable_json([vars(finding) for finding in findings]))
        sys.exit(bool(missing))
    for finding in findings:
        remedy = f" -> {finding.remedy}" if finding.remedy else ""
        click.echo(f"{finding.mark:4} {finding.what:14} {finding.found}{remedy}")
    if missing:
        click.echo(f"missing: {', '.join(missing)}", err=True)
        sys.exit(1)
    click.echo("everything needed is here")
