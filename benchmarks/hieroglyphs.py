"""Makes a collection of Egyptian hieroglyphs from the Python package `hieropy`, and prints the number of signs.

    pip download --no-deps hieropy==0.1.10
    python benchmarks/hieroglyphs.py hieropy-0.1.10-py3-none-any.whl hieroglyphs

The package has a font, and a list of keywords with the signs that they describe. The second argument is the folder of
the collection, which receives a picture of each sign of the list. The caption of a sign has its keywords in the order
of the list. The package is neither installed nor imported, and no other file of it is read.
"""

import argparse
import io
import json
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from interleave import parse_options
from PIL import Image, ImageDraw, ImageFont

KEYWORDS = "hieropy/resources/keywordpoints.csv"
FONT = "hieropy/resources/NewGardiner.ttf"
SIDE = 256
"""Width and height of a picture in pixels."""
MARGIN = 16
"""Least distance in pixels between a sign and the border of its picture."""


def read_keywords(lines: Iterable[str]) -> dict[str, list[str]]:
    """Return the keywords of each character in the order of `lines`. A line has a keyword and the code points of its
    characters, such as `bird,0x1313F 0x13140`.
    """
    keywords = defaultdict(list)
    for line in lines:
        keyword, _, points = line.strip().partition(",")
        for point in points.split():
            keywords[chr(int(point, 16))].append(keyword)
    return keywords


def draw_sign(character: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    """Draw a sign in black in the middle of a white square. The longer side of the sign fills the square up to the
    margin.
    """
    left, top, right, bottom = font.getbbox(character)
    sign = Image.new("L", (int(right - left), int(bottom - top)), 255)
    ImageDraw.Draw(sign).text((-left, -top), character, fill=0, font=font)
    scale = (SIDE - 2 * MARGIN) / max(sign.size)
    sign = sign.resize(
        (max(1, round(sign.width * scale)), max(1, round(sign.height * scale))), Image.Resampling.LANCZOS
    )
    picture = Image.new("L", (SIDE, SIDE), 255)
    picture.paste(sign, ((SIDE - sign.width) // 2, (SIDE - sign.height) // 2))
    return picture


def write_collection(keywords: dict[str, list[str]], font: ImageFont.FreeTypeFont, output: Path) -> dict[str, float]:
    """Write a picture for each character in `keywords`, and `captions.tsv` with its keywords, into the new folder
    `output`.

    Return the number of `signs`, and the share of signs whose caption belongs to another sign as well
    (`share_with_repeated_caption`, from 0 to 1). Raises FileExistsError if `output` already has a folder `images`.
    """
    (output / "images").mkdir(parents=True)
    captions = {}
    for character in sorted(keywords):
        name = f"U+{ord(character):05X}.png"
        draw_sign(character, font).save(output / "images" / name)
        captions[name] = ", ".join(keywords[character])
    lines = [f"{name}\t{caption}\n" for name, caption in captions.items()]
    (output / "captions.tsv").write_text("".join(lines), encoding="utf-8")
    repeated = sum(count for count in Counter(captions.values()).values() if count > 1)
    return {"signs": len(captions), "share_with_repeated_caption": round(repeated / len(captions), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, nargs="?", help="File of the package.")
    parser.add_argument("output", type=Path, nargs="?", help="Folder of the collection, which does not exist.")
    given = parse_options(parser, globals(), wheel=None, output=None)
    if given.tiny:
        font = ImageFont.load_default(SIDE)
        assert isinstance(font, ImageFont.FreeTypeFont)
        keywords = read_keywords(["letter,0x41 0x42 0x69", "dot,0x69"])
        with tempfile.TemporaryDirectory() as folder:
            made = write_collection(keywords, font, Path(folder) / "letters")
    else:
        if given.wheel is None or given.output is None:
            parser.error("two arguments are needed: the file of the package, and the folder of the new collection.")
        if given.output.exists():
            parser.error(f"the folder {given.output} exists already. Name a folder that does not exist.")
        with zipfile.ZipFile(given.wheel) as wheel:
            keywords = read_keywords(wheel.read(KEYWORDS).decode("utf-8").splitlines())
            font = ImageFont.truetype(io.BytesIO(wheel.read(FONT)), SIDE)
        made = write_collection(keywords, font, given.output)
    print(json.dumps(made))


if __name__ == "__main__":
    main()
