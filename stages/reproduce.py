"""`reproduce`: the tables of the seeds with this run's numbers beside the printed ones."""

from pathlib import Path

import click

from stages import options


@click.command("reproduce")
@click.option("--summary", "summary_path", type=options.FILE, required=True, help="What `summarise` wrote.")
@click.option("--gong", "gong_path", type=options.FILE, help="What `tabulate` wrote, put at the end. [default: none]")
@options.config
@options.output("file", "The tables, a Markdown file.")
def command(summary_path: Path, gong_path: Path | None, config_path: Path | None, output: Path) -> None:
    """Lay the rows of a run beside the seeds' printed tables; what the data cannot support is named with its reason."""
    from pipeline import config
    from pipeline.report.reproduction import render
    from pipeline.storage.atomic import TABLES, publish_text, read_verified
    from pipeline.storage.evaluations import read_summary

    settings = config.load(config_path)
    text = render(read_summary(summary_path), settings.reproduce.collection, settings.name)
    if gong_path:
        text += "\n" + read_verified(gong_path, TABLES)[0].decode("utf-8")
    else:
        text += "\n## Gong et al.: Tables 1 to 6\n\nLeft out: no tables of `tabulate` were given; see reproduce.gong.\n"
    publish_text(output, text)
