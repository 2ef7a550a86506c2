"""A collection for every command that writes: the tiny run's, and what networks, regions, trees and a study need."""

import json
from pathlib import Path

import numpy as np
import tiny_run
from tiny_run import COUNT, SHARD_SIZE, THINGS

from pipeline.config import merge

FINETUNED = {
    "name": "tuned", "architecture": "squeezenet1_1", "weights": "finetuned", "resize": 32, "crop": None,
}  # fmt: skip
SMALL = {"dimensions": 8, "epochs": 3, "batch_size": 16, "precision": "float32", "checkpoint_seconds": 0}
"""Of a network: a checkpoint after each of its few steps."""
NETWORK = {
    "encoders": [FINETUNED],
    "models": ["both", "dvsa", "gru-csls", "dvsa-csls"],
    "parts": 2,
    "extract": {"precision": "float32", "batch_size": 4, "checkpoint_images": 4, "decode_workers": 0},
    "regions": {"encoders": ["tuned"], "count": 2, "context": 2, "checkpoint_images": 4, "dimensions": 4},
    "finetune": {
        "splits": ["train"], "side": 32, "context": 2, "iterations": 5, "images": 2,
        "precision": "float32", "checkpoint_seconds": 0,
    },
    "parse": {
        "treebank": dict.fromkeys(("train", "dev", "test"), "treebank.conllu"),
        "training": {"epochs": 2},
    },
    "tokens": {"min_count": 2},
    "word_vectors": {"dim": 8},
    "train_defaults": SMALL,
    "hmlstm": {"simplified_epochs": 1, "correspondence_epochs": 1},
    "dvsa": {"hidden": 6, **SMALL},
    "variants": {"gru-csls": {"model": "gru", "csls": True}, "dvsa-csls": {"model": "dvsa", "csls": True}},
    "ensembles": {"both": {"members": ["ncca", "gru"]}},
    "language_defaults": {**{key: SMALL[key] for key in SMALL if key != "dimensions"}, "averaging": 0},
    "mrnn": {"dimensions": 8, "word_dim": 8},
    "mrnn_regions": {"dimensions": 8, "word_dim": 8, "snippets": "dvsa"},
    "generators": ["mrnn", "mrnn-regions"],
    "describe": {"boxes": True, "top": 2, "beam": 2, "meteor": False},
    "evaluate": {"bootstrap": 20},
}  # fmt: skip
ADOPTED = {
    "models": ["zero-shot"],
    "text_encoders": [{"name": "words", "kind": "averaged", "averaged": {"source": "file", "file": "words.txt"}}],
}
SPOKEN = {"text_encoders": [{"name": "spoken", "kind": "imported", "imported": {"path": "spoken.npy"}}]}
CONFIGS = {
    "spoken": merge(tiny_run.CONFIG, SPOKEN),
    "adopted": merge(tiny_run.CONFIG, ADOPTED),
    "demo": {"demo": {"train": 4, "dev": 2, "test": 2, "weak": 2}},
    "network": NETWORK,
    "dense": merge(NETWORK, {"models": ["hmlstm"], "generators": [], "regions": {"dimensions": None}}),
    "trees": {
        **NETWORK, "models": ["sdtrnn"], "ensembles": {}, "generators": [], "reproduce": {"trees": True},
    },
    "ranked": merge(NETWORK, {"evaluate": {"generators": ["mrnn"]}}),
    "shown": {
        **NETWORK, "models": ["ncca", "dvsa"], "ensembles": {}, "generators": ["mrnn"], "align": {"splits": ["dev"]},
        "describe": {"boxes": False},
    },
    "encoders": {
        **NETWORK,
        "models": ["ncca"],
        "generators": [],
        "encoders": [
            FINETUNED, {**FINETUNED, "name": "eyes", "weights": "untrained"},
            {"name": "pooled", "architecture": "pooled", "of": "tuned"},
        ],
    },
    "study": merge(
        tiny_run.CONFIG,
        {
            "auxiliary": {"splits": ["train"]},
            "documents": {
                "mild": {
                    "fields": ["title", "tags"],
                    "simulate": {"tag_words": 3, "true_words": 2, "wrong": 0.1, "missing": 0.1},
                }
            },
            "transfer": {
                "beta": [0.3], "auxiliary_dimensions": [4], "features": 12, "neighbours": 3,
            },
            **dict.fromkeys(
                ("wsabie_sgd", "wsabie_adagrad"), {"max_norm": [10], "dimensions": 4, "epochs": 2}
            ),
            "study": {
                "folds": 3, "draws": 1, "further_draws": 1, "sizes": [1, 1, 1], "transfer_sizes": [1, 1, 1],
                "weak_sizes": [1, 1, 1, 1], "terms": [6, 8, 10], "fit": tiny_run.CONFIG["fit"],
            },
            "reproduce": {"collection": "flickr8k"},
        },
    ),
}  # fmt: skip


def make_collection(root: Path) -> None:
    """The tiny run's collection with two labelled boxes in every image, with trees, and with these configurations."""
    tiny_run.make_collection(root)
    boxes, parses, trees, treebank = ["file\tx1\ty1\tx2\ty2\tscore\tlabel\n"], [], [], []
    for number in range(COUNT):
        name, thing = f"{number:02d}.png", THINGS[number % len(THINGS)]
        boxes += [f"{name}\t1\t1\t9\t9\t0.9\t{thing}\n", f"{name}\t6\t5\t15\t15\t0.5\tsky\n"]
        parses += [
            parse(f"{name}#0", f"a/DT/2/det {thing}/NN/0/root"),
            parse(f"{name}#1", f"the/DT/3/det big/JJ/3/amod {thing}/NN/0/root"),
        ]
        treebank.append(parse(name, f"a/DT/2/det {thing}/NN/3/nsubj runs/VBZ/0/root fast/RB/3/advmod ././3/punct"))
        trees += [
            f"{name}#0\t(NP (DT a) (NN {thing}))\n",
            f"{name}#1\t(FRAG (DT the) (NP (JJ big) (NN {thing})))\n",
        ]
    files = {"boxes.tsv": boxes, "trees.conllu": parses, "trees.brackets": trees, "treebank.conllu": treebank}
    for name, lines in files.items():
        (root / name).write_text("".join(lines))
    vectors = (" ".join(map(str, [thing, *row])) for thing, row in zip(THINGS, np.eye(len(THINGS)), strict=True))
    (root / "words.txt").write_text("\n".join(vectors) + "\n")  # in the space of the features of `colour`
    np.save(root / "spoken.npy", np.random.default_rng(0).standard_normal((2 * COUNT, 6), dtype=np.float32))
    (root / "spoken.txt").write_text("".join(f"images/{n:02d}.png#{k}\n" for n in range(COUNT) for k in range(2)))
    (root / "applied.yaml").write_text(json.dumps({"shard_size": SHARD_SIZE, "extract": NETWORK["extract"]}))
    for name, settings in CONFIGS.items():
        places = {"data_root": str(root), "weights_root": str(root), "demo": {"generate": False}}
        (root / f"{name}.yaml").write_text(json.dumps({**places, **settings}))


def parse(identity: str, words: str) -> str:
    """CoNLL-U of a sentence whose words are written form/tag/head/relation."""
    rows = [f"# sent_id = {identity}\n"]
    for number, word in enumerate(words.split(), start=1):
        form, tag, head, relation = word.rsplit("/", 3)
        rows.append(f"{number}\t{form}\t_\t{tag}\t{tag}\t_\t{head}\t{relation}\t_\t_\n")
    return "".join(rows) + "\n"
