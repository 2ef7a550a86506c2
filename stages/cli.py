"""The command `jointspace`: a lazy group, so that no command pays for the imports of another."""

import importlib
import logging
import sys

import click

from pipeline import runtime
from pipeline.errors import JointspaceError
from pipeline.printable import printable

COMMANDS = {
    "make-demo": "stages.make_demo",
    "ingest": "stages.ingest",
    "prepare-encoder": "stages.prepare_encoder",
    "finetune": "stages.finetune",
    "extract": "stages.extract",
    "extract-regions": "stages.extract_regions",
    "pool-regions": "stages.pool_regions",
    "reduce-regions": "stages.reduce_regions",
    "show-regions": "stages.show_regions",
    "import-features": "stages.import_features",
    "build-vocabulary": "stages.build_vocabulary",
    "encode-sentences": "stages.encode_sentences",
    "simulate-documents": "stages.simulate_documents",
    "encode-documents": "stages.encode_documents",
    "build-token-vocabulary": "stages.build_token_vocabulary",
    "encode-tokens": "stages.encode_tokens",
    "train-word-vectors": "stages.train_word_vectors",
    "train-parser": "stages.train_parser",
    "parse": "stages.parse",
    "build-label-table": "stages.build_label_table",
    "encode-trees": "stages.encode_trees",
    "accumulate": "stages.accumulate",
    "fit": "stages.fit",
    "train": "stages.train",
    "embed": "stages.embed",
    "fit-csls": "stages.fit_csls",
    "combine": "stages.combine",
    "join-embeddings": "stages.join_embeddings",
    "align": "stages.align",
    "list-magnitudes": "stages.list_magnitudes",
    "embed-phrases": "stages.embed_phrases",
    "rank-phrases": "stages.rank_phrases",
    "show-phrases": "stages.show_phrases",
    "build-index": "stages.build_index",
    "index-add": "stages.index_add",
    "index-remove": "stages.index_remove",
    "search": "stages.search",
    "serve": "stages.serve",
    "show-words": "stages.show_words",
    "evaluate": "stages.evaluate",
    "summarise": "stages.summarise",
    "train-generator": "stages.train_generator",
    "describe": "stages.describe",
    "evaluate-descriptions": "stages.evaluate_descriptions",
    "report": "stages.report",
    "reproduce": "stages.reproduce",
    "verify": "stages.verify",
    "explain": "stages.explain",
    "study": "stages.study",
    "tabulate": "stages.tabulate",
    "sweep": "stages.sweep",
    "ground-truth": "stages.ground_truth",
    "plan": "stages.plan",
    "doctor": "stages.doctor",
}


class OneLine(logging.Formatter):
    """Messages that hold nothing a terminal would obey; a traceback behind one stays as it is."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


class LazyGroup(click.Group):
    """Commands in the order of the pipeline; each module is imported when its command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return importlib.import_module(COMMANDS[name]).command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--threads", type=click.IntRange(min=1), help="Threads of all libraries together. [default: all cores]")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--quiet", is_flag=True, help="Show warnings and errors only.")
@click.version_option(package_name="jointspace")
def cli(threads: int | None, debug: bool, quiet: bool) -> None:
    """Photographs and sentences into one joint space, and FAISS indices of it.

    Commands stand in the order of the pipeline; `snakemake all --cores 2` runs them all.
    """
    runtime.configure(threads)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for ours in ("pipeline", "stages"):
        logging.getLogger(ours).setLevel(logging.WARNING if quiet else logging.INFO)


def main() -> None:
    """Run a command. Exit codes: 0 done, 1 failed, 2 wrong use, 3 done with rejects above the limit."""
    try:
        cli(standalone_mode=False)
    except JointspaceError as error:
        _fail(str(error), error.exit_code)
    except click.exceptions.Abort:
        _fail("interrupted", 130)
    except click.ClickException as error:
        error.message = printable(error.message)
        error.show()
        sys.exit(2)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)


def _fail(message: str, code: int) -> None:
    if "--debug" in sys.argv:
        raise
    click.echo(f"jointspace: {printable(message)}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
