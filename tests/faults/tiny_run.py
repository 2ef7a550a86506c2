"""A small run for the fault tests: 40 synthetic photos, and the stages that are fast on them."""

from pathlib import Path

import numpy as np
import yaml
from click.testing import CliRunner
from PIL import Image

from pipeline.run.layout import Artefact, Layout
from pipeline.storage.commit import Provenance
from pipeline.storage.parameters import ENCODER, write_parameters
from pipeline.storage.shards import REGIONS, write_shard
from pipeline.storage.texts import FIELDS, KINDS, TREES, write_parses, write_sentences
from stages.catalogue import declared
from stages.cli import cli

COUNT = 40
"""Number of photos."""
SHARD_SIZE = 16
"""Number of photos per shard."""
N_SHARDS = 3
MISSING = "missing.png"
"""A photo that has a caption, but no file."""
THINGS = ("dog", "cat", "bird", "horse", "boat", "house", "tree", "car")
"""Things that the captions name, one for each photo in turn."""
ENCODER_SETTINGS = {"architecture": "none", "layer": "none", "weights": {"origin": "untrained"}}
"""Settings of an encoder that cannot encode photos."""
CONFIG = {
    "encoders": [{"name": "colour", "kind": "imported", "path": "features.npy", "made_by": "eyes"}],
    "query_encoders": [{"name": "eyes", "architecture": "squeezenet1_1", "weights": "untrained"}],
    "models": ["ncca"],
    "shard_size": SHARD_SIZE,
    "parts": N_SHARDS,
    "text": {"min_count": 2, "size": 20},
    "tokens": {"min_count": 2},
    "fit": {"dimensions": [4], "image_ridge": [0.1], "text_ridge": [0.1], "eigenvalue_power": [1]},
    "evaluate": {"bootstrap": 20, "splits": ["test"], "protocols": ["all-sentences"]},
}


def make_collection(root: Path) -> None:
    """Write a collection of COUNT photos with two captions, weak texts and precomputed features for each photo.

    The grey of a photo stands for its thing. The first photo also has a box. A caption names the photo MISSING.
    """
    (root / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    names = [f"{number:02d}.png" for number in range(COUNT)]
    for number, name in enumerate(names):
        pixels = rng.integers(256, size=(16, 16, 3), dtype=np.uint8)
        pixels[4:] = 30 * (number % len(THINGS))
        Image.fromarray(pixels).save(root / "images" / name)
    things = [THINGS[number % len(THINGS)] for number in range(COUNT)]
    sentences = [
        f"{name}\t0\ta {thing}\n{name}\t1\tthe big {thing}\n" for name, thing in zip(names, things, strict=True)
    ]
    (root / "captions.tsv").write_text("".join([*sentences, f"{MISSING}\t0\ta ghost\n"]))
    splits = ["train"] * 24 + ["dev"] * 8 + ["test"] * 8
    (root / "splits.tsv").write_text("".join(f"{n}\t{s}\n" for n, s in zip(names, splits, strict=True)))
    documents = "".join(
        f"{name}\t{thing}\t{thing},sky\ton a {thing}\n" for name, thing in zip(names, things, strict=True)
    )
    (root / "weak.tsv").write_text("file\ttitle\ttags\tdescription\n" + documents)
    (root / "boxes.tsv").write_text("file\tx1\ty1\tx2\ty2\tscore\tlabel\n00.png\t1\t1\t9\t9\t0.5\tdog\n")
    features = np.eye(len(THINGS))[np.arange(COUNT) % len(THINGS)] + 0.1 * rng.random((COUNT, len(THINGS)))
    np.save(root / "features.npy", features.astype(np.float32))
    (root / "features.txt").write_text("".join(f"images/{name}\n" for name in names))
    write_config(root)


def write_config(root: Path) -> None:
    """Write the configuration of a run that uses the collection in `root`."""
    settings = {"data_root": str(root), "demo": {"generate": False}}
    (root / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **settings}))


def stages(root: Path, run: Path) -> dict[str, tuple[list[list[str]], list[Path]]]:
    """Return the fast stages, as name -> the arguments of each call, and the files and folders that the calls make."""
    config = ["--set-config", root / "config.yaml"]

    def chunks(*names: str) -> list[list[object]]:
        return [[*names, "--run", run, "--part", number, *config, "--force"] for number in range(N_SHARDS)]

    def whole(*names: str) -> list[list[object]]:
        return [[*names, "--run", run, *config, "--force"]]

    calls = {
        "ingest": [["--run", run, "--processes", 0, *config, "--force"]],
        "import_vectors": chunks("features/colour"),
        "prepare_encoder": whole("text/encoders/tfidf"),
        "encode_sentences": chunks("tfidf"),
        "build_token_vocabulary": whole(),
        "encode_tokens": chunks(),
        "encode_documents": chunks("all", "tfidf"),
        "accumulate": whole("target"),
        "fit": whole("ncca"),
        "embed": chunks("ncca"),
        "evaluate": whole("ncca", "test", "all-sentences"),
        "summarise": whole(),
        "build_index": whole("ncca"),
    }
    made = {
        "ingest": ["manifest"], "import_vectors": ["features/colour"],
        "prepare_encoder": ["text/encoders/tfidf"], "encode_sentences": ["text/tfidf"],
        "build_token_vocabulary": ["text/tokens.json"], "encode_tokens": ["text/tokens"],
        "encode_documents": ["text/documents/all/tfidf"],
        "accumulate": ["moments/target"], "fit": ["models/ncca"], "embed": ["embeddings/ncca"],
        "evaluate": [f"evaluation/ncca.test.all-sentences.{end}" for end in ("json", "ranks.npz")],
        "summarise": ["evaluation/summary.json", "evaluation/summary.md"], "build_index": ["index/ncca"],
    }  # fmt: skip
    return {
        name: ([list(map(str, call)) for call in calls[name]], [run / path for path in made[name]]) for name in calls
    }


def elsewhere(stage: str, arguments: list[str], folder: Path) -> list[str]:
    """Return the `arguments` of a call of a stage, changed so that the call runs in `folder` in place of its run.

    `folder` gets links to all files of the run, apart from the files of the first artefact that the call makes.
    """
    at = arguments.index("--run")
    run = Path(arguments[arguments.index("--run") + 1])
    config = arguments.index("--set-config")
    link(Path(arguments[config + 1]), folder / "config.yaml")
    known = declared()[stage]
    made = known.outputs(Layout(run), *arguments[: len(known.names)])[0]
    output = made.path if isinstance(made, Artefact) else made.shard(0)
    prefixes = output.stem if isinstance(made, Artefact) else ("shard-", "chunk-", "part-", "sum.")
    for parent in output.relative_to(run).parents:
        (folder / parent).mkdir(parents=True, exist_ok=True)
        for path in (run / parent).iterdir() if (run / parent).exists() else ():
            is_output = path.parent == output.parent and path.name.startswith(prefixes)
            if not (output.is_relative_to(path) or is_output):
                link(path, folder / path.relative_to(run))
    return [*arguments[: at + 1], str(folder), *arguments[at + 2 : config], *arguments[config + 2 :]]


def link(path: Path, link: Path) -> None:
    """Make `link` a symbolic link to `path`, unless `link` is a link already."""
    if not link.is_symlink():
        link.symlink_to(path)


def call(stage: str, arguments: list[str]) -> None:
    """Run a stage, or another command, in this process with these arguments. The errors of the command are raised."""
    command = cli.get_command(None, stage)
    result = CliRunner().invoke(command, arguments, standalone_mode=False, catch_exceptions=False)
    assert result.exit_code == 0, result.output


def call_all(stage: str, calls: list[list[str]]) -> None:
    for arguments in calls:
        call(stage, arguments)


def make_encoder(run: Path) -> None:
    """Write the encoder `colour`, which cannot encode photos, but is copied to the index."""
    tensors = {"nothing": np.zeros(64, np.float32)}
    settings = dict(ENCODER_SETTINGS)
    about = {"details": {"name": "colour"}, "provenance": Provenance(run, "test", 1)}
    write_parameters(run / "encoders/colour/model.safetensors", ENCODER, tensors, settings=settings, **about)


def make_run(root: Path, run: Path) -> None:
    """Run all fast stages on the collection in `root`, for a run in the folder `run`."""
    make_encoder(run)
    for name, (calls, _) in stages(root, run).items():
        call_all(name, calls)


def add_other_kinds(run: Path, folder: Path) -> None:
    """Write one shard for each kind that only slow stages make, to the subfolder `other` of `folder`."""
    provenance = Provenance(run, "test", 1)
    rng = np.random.default_rng(1)
    regions = {
        "features": rng.random((6, 4), np.float32), "boxes": rng.random((6, 4), np.float32),
        "scores": rng.random(6, np.float32), "offsets": np.arange(0, 7, 2), "image_id": np.arange(3),
    }  # fmt: skip
    details = {"rejects": [], "counts": {}, "dim": 4}
    write_shard(folder / "other/regions.h5", REGIONS, regions, rows=3, provenance=provenance, details=details)
    trees = {f"{kind}_{name}": np.arange(4, dtype=np.int32) for kind in KINDS for name in FIELDS}
    write_sentences(folder / "other/trees.h5", TREES, trees, np.arange(3), np.arange(3), provenance=provenance)
    conllu = "1\tdog\t_\tNOUN\tNN\t_\t0\troot\t_\t_\n\n" * 3
    brackets = "(NP (NN dog))\n" * 3
    write_parses(folder / "other/parses.conllu", conllu, brackets, 3, provenance=provenance)
