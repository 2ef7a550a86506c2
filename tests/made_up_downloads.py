"""Collections in the very form in which others distribute them, of a few small drawn photographs."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torchvision import models

COLOURS = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (40, 60, 200), "yellow": (220, 210, 50)}
PLACES = ("top left", "top right", "bottom left", "bottom right")
WIDTH, HEIGHT, SIDE = 64, 48, 20
"""Pixels of a photograph, and of the square that it shows."""


class Drawn(NamedTuple):
    """One photograph: its number, the `box` (x1, y1, x2, y2) of its square, the square's `colour`, five `sentences`."""

    number: int
    box: tuple[int, int, int, int]
    colour: str
    sentences: tuple[str, ...]


def draw(path: Path, number: int) -> Drawn:
    """A coloured square in one corner, on noise that no two photographs share."""
    rng = np.random.default_rng(number)
    colour, place = list(COLOURS)[number % 4], PLACES[number // 4 % 4]
    pixels = rng.integers(256, size=(HEIGHT, WIDTH, 3), dtype=np.uint8)
    x, y = (2 if "left" in place else WIDTH - SIDE - 2), (2 if "top" in place else HEIGHT - SIDE - 2)
    pixels[y : y + SIDE, x : x + SIDE] = COLOURS[colour]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    told = (
        f"A {colour} square is at the {place}.",
        f"There is a {colour} square in the {place} corner .",
        f"The {place} of photograph {number} is {colour}.",
        f"Somebody drew a {colour} square.",
        f"A square at the {place}, and noise everywhere else.",
    )
    return Drawn(number, (x, y, x + SIDE, y + SIDE), colour, told)


def write_coco(folder: Path, splits: Mapping[str, int]) -> list[Drawn]:
    """COCO with Karpathy's dataset_coco.json, whose images of each of `splits` lie apart, and the instances of both
    folders. Numbers fall where positions rise."""
    images, drawn, total = [], [], sum(splits.values())
    for position, split in enumerate(_shuffled(splits)):
        where = "train2014" if split == "train" else "val2014"
        cocoid = 10 * (total - position)
        file = f"COCO_{where}_{cocoid:012d}.jpg"
        drawn.append(draw(folder / where / file, position))
        given = {"filepath": where, "filename": file, "imgid": position, "split": split, "cocoid": cocoid}
        images.append(given | _sentences(drawn[-1], position))
    _write(folder / "dataset_coco.json", {"images": images, "dataset": "coco"})
    categories = [{"id": number, "name": colour, "supercategory": "square"} for number, colour in enumerate(COLOURS, 1)]
    for where in ("train2014", "val2014"):
        own = [(image, one) for image, one in zip(images, drawn, strict=True) if image["filepath"] == where]
        listed = [
            {"id": image["cocoid"], "file_name": image["filename"], "width": WIDTH, "height": HEIGHT}
            for image, _ in own
        ]
        found = [
            {"id": number, "image_id": image["cocoid"], "category_id": 1 + list(COLOURS).index(one.colour)}
            | {"iscrowd": 0, "bbox": [*map(float, one.box[:2]), float(SIDE), float(SIDE)], "area": float(SIDE * SIDE)}
            for number, (image, one) in enumerate(own)
        ]
        instances = {"info": {}, "licenses": [], "images": listed, "annotations": found, "categories": categories}
        _write(folder / f"annotations/instances_{where}.json", instances)
    return drawn


def write_flickr30k(folder: Path, splits: Mapping[str, int]) -> list[Drawn]:
    """Flickr30K with Karpathy's dataset_flickr30k.json and the annotations of Flickr30k Entities."""
    drawn = _write_flickr(folder, "flickr30k", "flickr30k-images", splits)
    (folder / "Annotations").mkdir()
    for name, one in drawn.items():
        corners = zip(("xmin", "ymin", "xmax", "ymax"), one.box, strict=True)
        box = "".join(f"<{corner}>{value}</{corner}>" for corner, value in corners)
        (folder / f"Annotations/{Path(name).stem}.xml").write_text(
            f"<annotation><filename>{name}</filename>"
            f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
            f"<object><name>{one.number}</name><bndbox>{box}</bndbox></object>"
            f"<object><name>{one.number + 9000}</name><scene>1</scene><nobndbox>0</nobndbox></object></annotation>"
        )
    return list(drawn.values())


def write_flickr8k(folder: Path, splits: Mapping[str, int]) -> list[Drawn]:
    """Flickr8k with Karpathy's dataset_flickr8k.json, and the boxes of its squares as a table."""
    drawn = _write_flickr(folder, "flickr8k", "Flicker8k_Dataset", splits)
    _write_boxes(folder / "boxes.tsv", drawn)
    return list(drawn.values())


def write_folder(folder: Path, names: list[str], splits: Mapping[str, int] | None = None) -> None:
    """`images/` of these names with the tables of our own form; splits.tsv, weak.tsv and boxes.tsv with `splits`."""
    drawn = {name: draw(folder / "images" / name, number) for number, name in enumerate(names)}
    rows = [(name, number, text) for name, one in drawn.items() for number, text in enumerate(one.sentences)]
    (folder / "captions.tsv").write_text("".join(f"{name}\t{number}\t{text}\n" for name, number, text in rows))
    if splits is not None:
        mixed = zip(names, _shuffled(splits), strict=True)
        (folder / "splits.tsv").write_text("".join(f"{name}\t{split}\n" for name, split in mixed))
        weak = [f"{name}\t{one.colour}\t{one.colour},noise\t{one.sentences[0]}\n" for name, one in drawn.items()]
        (folder / "weak.tsv").write_text("".join(["file\ttitle\ttags\tdescription\n", *weak]))
        _write_boxes(folder / "boxes.tsv", drawn)


def keep_weights(architecture: str, torch_home: Path) -> None:
    """Random weights where torchvision keeps those of `architecture` that it has downloaded."""
    url = models.get_model_weights(architecture).DEFAULT.url
    folder = torch_home / "hub/checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(models.get_model(architecture).state_dict(), folder / url.rpartition("/")[2])


def _shuffled(splits: Mapping[str, int]) -> Iterator[str]:
    """The split of one image after the other, as many of each as `splits` says, all of them mixed."""
    names = np.repeat(list(splits), list(splits.values()))
    yield from np.random.default_rng(0).permutation(names).tolist()


def _write_flickr(folder: Path, name: str, where: str, splits: Mapping[str, int]) -> dict[str, Drawn]:
    """The photographs by name, listed in Karpathy's file."""
    images, drawn = [], {}
    for position, split in enumerate(_shuffled(splits)):
        file = f"{1000092795 + 7 * position}.jpg"
        drawn[file] = draw(folder / where / file, position)
        images.append({"imgid": position, "split": split, "filename": file} | _sentences(drawn[file], position))
    _write(folder / f"dataset_{name}.json", {"images": images, "dataset": name})
    return drawn


def _write_boxes(path: Path, drawn: Mapping[str, Drawn]) -> None:
    rows = [(name, *one.box, 1, one.colour) for name, one in drawn.items()]
    lines = ["\t".join(map(str, row)) for row in [("file", "x1", "y1", "x2", "y2", "score", "label"), *rows]]
    path.write_text("\n".join(lines) + "\n")


def _sentences(one: Drawn, position: int) -> dict:
    numbers = list(range(5 * position, 5 * position + 5))
    told = [
        {"tokens": text.lower().rstrip(" .").replace(",", "").split(), "raw": text, "imgid": position, "sentid": sentid}
        for text, sentid in zip(one.sentences, numbers, strict=True)
    ]
    return {"sentids": numbers, "sentences": told}


def _write(path: Path, value: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
