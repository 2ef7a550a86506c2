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
    """Flickr30K with Karpathy's dataset_flickr30k.json, its token file, and the annotations of Flickr30k Entities."""
    images, drawn, tokens = [], [], []
    for position, split in enumerate(_shuffled(splits)):
        name = str(1000092795 + 7 * position)
        drawn.append(draw(folder / f"flickr30k-images/{name}.jpg", position))
        given = {"imgid": position, "split": split, "filename": f"{name}.jpg"}
        images.append(given | _sentences(drawn[-1], position))
        tokens += [f"{name}.jpg#{number}\t{text}\n" for number, text in enumerate(drawn[-1].sentences)]
        corners = zip(("xmin", "ymin", "xmax", "ymax"), drawn[-1].box, strict=True)
        box = "".join(f"<{corner}>{value}</{corner}>" for corner, value in corners)
        (folder / "Annotations").mkdir(exist_ok=True)
        (folder / f"Annotations/{name}.xml").write_text(
            f"<annotation><filename>{name}.jpg</filename>"
            f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
            f"<object><name>{position}</name><bndbox>{box}</bndbox></object>"
            f"<object><name>{position + 9000}</name><scene>1</scene><nobndbox>0</nobndbox></object></annotation>"
        )
    _write(folder / "dataset_flickr30k.json", {"images": images, "dataset": "flickr30k"})
    (folder / "results_20130124.token").write_text("".join(tokens))
    return drawn


def write_flickr8k(folder: Path, splits: Mapping[str, int]) -> None:
    """Flickr8k as its authors distribute it."""
    lists, tokens = {split: [] for split in splits}, []
    for position, split in enumerate(_shuffled(splits)):
        name = f"{1000268201 + 7 * position}_{position:010x}.jpg"
        one = draw(folder / f"Flicker8k_Dataset/{name}", position)
        lists[split].append(name)
        tokens += [f"{name}#{number}\t{text}\n" for number, text in enumerate(one.sentences)]
    (folder / "Flickr8k.token.txt").write_text("".join(tokens))
    for split, names in lists.items():
        (folder / f"Flickr_8k.{split}Images.txt").write_text("".join(f"{name}\n" for name in names))


def write_folder(folder: Path, names: list[str]) -> None:
    """`images/` of these names with captions.tsv, as README's own folder."""
    drawn = [draw(folder / "images" / name, number) for number, name in enumerate(names)]
    told = [(name, *numbered) for name, one in zip(names, drawn, strict=True) for numbered in enumerate(one.sentences)]
    rows = [f"{name}\t{number}\t{text}\n" for name, number, text in told]
    (folder / "captions.tsv").write_text("".join(rows))


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
