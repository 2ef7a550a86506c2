"""`train-parser`: a spaCy tagger and dependency parser learned from a treebank."""

import logging
from pathlib import Path

import click

from stages import options

log = logging.getLogger(__name__)


@click.command("train-parser")
@options.config
@options.output("folder", "Folder of the parser: spaCy's own files in pipeline/, and pipeline.json.")
def command(config_path: Path | None, output: Path) -> None:
    """Train a tagger and a dependency parser on the CoNLL-U files of the section parse.treebank."""
    from tqdm import tqdm

    from pipeline import config
    from pipeline.errors import UsageError
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.parsers import publish_parser, require_own
    from pipeline.storage.reading import file_sha256
    from pipeline.storage.trees import text_lines
    from pipeline.text.conllu import read_conllu
    from pipeline.text.parser_training import ParserTraining, judge
    from pipeline.text.parsing import require_spacy

    settings, spacy = config.load(config_path), require_spacy()
    require_own(output)
    treebanks, sources = {}, {}
    for part, name in settings.parse.treebank.model_dump().items():
        if name is None:
            raise UsageError(f"parse.treebank.{part} is null; name a CoNLL-U file under weights_root")
        path = Path(settings.weights_root) / name
        treebanks[part] = [entry.parse for entry in read_conllu(text_lines(path), str(path))]
        sources[part] = file_sha256(path)

    chosen = settings.parse.training.model_dump()
    training = ParserTraining(treebanks["train"], treebanks["dev"], settings.parse.training, settings.seed)
    history = []
    for agreement in tqdm(training.learn(), "train-parser", chosen["epochs"], unit=" epochs", disable=None):
        history.append(agreement.to_dict())
        log.info("epoch %d: dev %s", len(history), history[-1])

    test = judge(training.pipeline, treebanks["test"])
    told = {"training": chosen, "seed": settings.seed, "spacy": spacy.__version__}
    details = {"inputs": sources, "settings": told, "dev": history, "test": test.to_dict()}
    publish_parser(output, training.pipeline.to_disk, fingerprint("parser", 1, told, sources), details)
    log.info("test, with the treebank's tokens: %s", test.to_dict())
