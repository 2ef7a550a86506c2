"""Arranges photos with five sentences each in the form in which the Pascal sentences are published (Rashtchian et al.
2010).

    python benchmarks/pascal_page.py CAPTIONS IMAGES OUTPUT

CAPTIONS is a table of names, numbers and sentences, separated by tabs. IMAGES is the folder of the photos. OUTPUT
receives a page, `index.html`, and 20 folders of 50 photos, which are drawn from the photos with five sentences. The
collection has the size that Socher et al. 2014 used, for `config/papers/pascal1k.yaml`.
"""

import argparse
import html
import random
import shutil
from collections import defaultdict
from pathlib import Path

CATEGORIES = 20
IN_EACH = 50
SENTENCES = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("captions", "images", "output"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    if given.output.exists():
        parser.error(f"the folder {given.output} exists already. Name a folder that does not exist.")
    sentences = defaultdict(list)
    for line in given.captions.read_text(encoding="utf-8").splitlines():
        name, _, text = line.split("\t")
        sentences[name].append(text)
    names = [name for name in sorted(sentences) if len(sentences[name]) == SENTENCES and (given.images / name).exists()]
    if len(names) < CATEGORIES * IN_EACH:
        parser.error(
            f"only {len(names)} photos in {given.images} have {SENTENCES} sentences in {given.captions}, but"
            f" {CATEGORIES * IN_EACH} are needed. Name the captions and the folder of a larger collection."
        )
    random.Random(0).shuffle(names)
    page = []
    for category in range(CATEGORIES):
        folder = f"category{category:02d}"
        (given.output / folder).mkdir(parents=True)
        page.append(f"<h2>{folder}</h2>")
        for place in range(IN_EACH):
            number = category * IN_EACH + place
            file = f"{folder}/2008_{number:06d}.jpg"
            shutil.copyfile(given.images / names[number], given.output / file)
            cells = "\n".join(f"<tr><td> {html.escape(text)}\n </td></tr>" for text in sentences[names[number]])
            page.append(f'<tr><td><img src="{file}"></td>\n<td><table>\n{cells}\n</table></td></tr>')
    (given.output / "index.html").write_text(
        f"<html><body><table>{''.join(page)}</table></body></html>", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
