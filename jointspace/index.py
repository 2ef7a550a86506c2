"""The public class for searching an index from Python."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from jointspace.arguments import Views, require_text, to_array, to_count, to_dense, to_dense_views, to_number, to_views
from pipeline.compute.multivectors import Items, one_vector_each
from pipeline.config import registry
from pipeline.encoders.centred import CENTRED, Centred
from pipeline.encoders.restore import restore_encoder
from pipeline.encoders.text_encoder import TextEncoder
from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.images.decode import decode, to_rgb
from pipeline.images.opening import ImageLimits
from pipeline.index.queries import VECTORS, encode_image
from pipeline.index.search import Answer, Hit, Photograph, Searcher
from pipeline.report.photographs import figure
from pipeline.storage.sources import ImageSources
from pipeline.storage.stored_index import open_index


def load(
    *folders: str | Path, run: str | Path | None = None, allow: Sequence[str] = (), verify: bool = False
) -> "Index":
    """Open the index in a folder. Several folders with indexes of one model are searched as one index.

    A model that reads trees needs the parser of the run that built the index. `run` is the folder of this run. Name
    only a run that you trust, because loading a parser runs code. Models and encoders that are not part of jointspace
    also run code: `allow` lists the import paths (`module:Class`) that you trust.

    Each file of the index is checked against its stored hash when it is first read. A large file that was verified
    before, and was not written or touched since, is not hashed again unless `verify` is true.

    Raises IntegrityError if a folder contains no index or the index is damaged. A damaged file may be noticed only when
    it is first read, for example by a search. Raises UsageError without a folder, and if the folders contain indexes of
    different models.
    """
    return Index(*folders, run=run, allow=allow, verify=verify)


class Index:
    """An index of images and their captions, with the model that embeds queries. `load` returns an Index.

    Each file is read when it is first needed. A pickled Index stores the folders, and opens them again.

    >>> index = load(path)
    >>> [hit.row["path"].partition("-")[0] for hit in index.search("a red picture", k=2)]
    ['red', 'red']
    >>> index.search("a red picture", k=2, where="width < 10")
    []
    >>> [answer[0].row["path"].partition("-")[0] for answer in index.search(["a red picture", "a blue picture"])]
    ['red', 'blue']
    >>> vector = index.embed_text("a red picture")
    >>> index.search(vector=vector, k=1) == index.search("a red picture", k=1)
    True
    """

    def __init__(
        self, *folders: str | Path, run: str | Path | None = None, allow: Sequence[str] = (), verify: bool = False
    ) -> None:
        if not folders:
            raise UsageError("No folder of an index was passed. Name at least one folder that contains an index.")
        self._allow = (allow,) if isinstance(allow, str) else tuple(allow)
        registry.allow(self._allow)
        self._folders = [Path(folder).absolute() for folder in folders]
        self._run = Path(run).absolute() if run else None
        self._verify = verify
        self.stored = open_index(*map(Path, folders), run=self._run, skip_verified=not verify)
        self._searcher = Searcher(self.stored)
        self._searcher.draw = self._draw

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the function and the arguments that recreate this object from its folders, for pickle."""
        return partial(load, run=self._run, allow=self._allow, verify=self._verify), tuple(self._folders)

    @property
    def card(self) -> Mapping[str, Any]:
        """Description of the index as JSON values: its model, the training data, and the measured recall.

        If the index has several shards, the numbers of vectors, the file sizes, the splits and the fingerprint are of
        all shards, and the other values are of the first shard.
        """
        return self.stored.card.to_json()

    def search(
        self,
        text: str | Sequence[str] | None = None,
        *,
        image: str | Path | Image.Image | None = None,
        vector: np.ndarray | None = None,
        text_vector: np.ndarray | None = None,
        k: int = 10,
        where: str | None = None,
        weight: float = 0.5,
        match_text: bool = True,
        minus: Sequence[str] = (),
        plus: Sequence[str] = (),
        sort: str | None = None,
    ) -> Answer | list[Answer]:
        """Find the `k` images that are nearest to a query.

        The query is a text, an image, both, a `vector` (c,) of the joint space, or a `text_vector` (d,) of the text
        encoder. An image is a path or an opened Pillow image. If the query is a text and an image, the text has the
        weight `weight`, from 0 to 1, and the image has the weight 1 - `weight`. Only images whose columns satisfy the
        condition `where` are found, such as `price < 20`.

        Unless `match_text` is false, the words of a query without an image are also searched in the captions, file
        names and columns. Images that have all of these words are merged by rank with the images that the vectors find,
        and `matches` of their hits says where the words are, for example `caption`. An image whose identifier, such as
        an inventory number, equals the text comes first. The vectors of the words `minus` are subtracted from the
        vector of a single text, and the vectors of the words `plus` are added. The words are then not searched as text.
        `sort` is a column by which the likely matches of a single text are sorted. Dates are sorted from the newest to
        the oldest. A minus sign before the column reverses the order.

        Returns a list of hits, best first. A hit has a `rank` from 1, a `score`, and a `row`: the columns of the image
        in the table of the index. A higher score is a better match. The answer to a text or a `text_vector` also has a
        `judgement`: the number of `likely` hits, the approximate number of likely images in the whole index
        (`expected`, or None with `where`), and whether the text is out of domain (`off_topic`). The judgement is None
        if the index is not calibrated, and with `minus` or `plus`. For a list of texts, the result is a list with one
        answer per text. In this list, the answer to a text without a known word is empty if no image has its words, and
        its `error` is the message. A notebook shows the photos of an answer.

        Raises InputError if the model knows no word of a single text and no image has its words, if the image cannot be
        read, or if a vector has the wrong shape. Raises UsageError for a wrong condition or argument, or if the model
        cannot answer this kind of query.
        """
        k = to_count(k, "k")
        if where is not None:
            require_text(where, "where")
        minus, plus = ((words,) if isinstance(words, str) else tuple(words) for words in (minus, plus))
        if (minus or plus or sort is not None) and (image is not None or not isinstance(text, str)):
            raise UsageError(
                "minus, plus and sort need a query that is a single text. Pass one text and no image, or leave out"
                " minus, plus and sort."
            )
        asked = [text is not None or image is not None, vector is not None, text_vector is not None]
        if sum(asked) != 1:
            raise UsageError(
                "The query must be a text, an image, both, a vector, or a text_vector. Pass exactly one of these."
            )
        if text_vector is not None:
            vector = self.embed(text_vectors=np.atleast_2d(to_array(text_vector, "text")))
            if len(vector) != 1:
                raise InputError(
                    f"text_vector has {len(vector)} rows, but must be one vector. Call search once per vector."
                )
            return self._searcher.images_by_text_vector(self._row(vector), k, where)
        if vector is not None:
            return self._searcher.nearest("images", self._row(vector), k, where)[0]
        if isinstance(text, Sequence) and not isinstance(text, str | bytes):
            if image is not None:
                raise UsageError(
                    "A list of texts cannot be combined with an image. Leave out the image, or pass one text."
                )
            for number, each in enumerate(text):
                require_text(each, f"text {number}")
            return self._searcher.batch(text, k, where, match_text)
        if text is not None:
            require_text(text, "text")
        if image is None:
            assert text is not None
            return self._searcher.images(text, k, where, match_text, minus, plus, sort)
        return self._searcher.similar(self._photograph(image), k, text, to_number(weight, "weight"), where)

    def sentences(self, image: str | Path | Image.Image, k: int = 10, where: str | None = None) -> list[Hit]:
        """Find the `k` captions that are nearest to an image (a path or an opened Pillow image).

        `row["text"]` of a hit is the caption. Only captions of images that satisfy the condition `where` are found.
        Raises InputError if the image cannot be read, and UsageError if the index has no captions.
        """
        k = to_count(k, "k")
        if where is not None:
            require_text(where, "where")
        return self._searcher.sentences(self._photograph(image), k, where)

    def embed_text(self, text: str) -> np.ndarray:
        """Embed a text in the joint space, as (c,) float32.

        Raises InputError if the model knows no word of the text, and UsageError if the model has several vectors per
        text.
        """
        self._require_vectors()
        require_text(text, "text")
        self._searcher.require_known(text)
        return one_vector_each(self._searcher.embed_sentence(text))[0]

    def embed_image(self, image: str | Path | Image.Image) -> np.ndarray:
        """Embed an image (a path or an opened Pillow image) in the joint space, as (c,) float32.

        Raises InputError if the image cannot be read, and UsageError if the model has several vectors per image.
        """
        self._require_vectors()
        return one_vector_each(self._searcher.embed_photograph(self._photograph(image)))[0]

    def embed(self, *, image_vectors: Views | None = None, text_vectors: Views | None = None) -> np.ndarray:
        """Embed new image vectors (n, D) or text vectors (n, d) in the joint space, as (n, c) float32.

        The vectors must come from the encoders that the model was fitted to. If there are several encoders, pass a
        mapping of encoder names to vectors.

        Raises UsageError unless exactly one argument is passed, and if the model does not accept such vectors. Raises
        InputError if the vectors belong to other encoders, have other dimensions, or are not finite.
        """
        if (image_vectors is None) == (text_vectors is None):
            raise UsageError("embed needs image_vectors or text_vectors, but not both. Pass exactly one of them.")
        self._require_vectors()
        model = self._searcher.model
        if image_vectors is not None:
            return self._embedded(
                lambda: model.embed_images(to_dense_views(image_vectors, "image", dict.fromkeys(model.encoders)))
            )
        if model.sentence_view != VECTORS:
            raise UsageError(
                f"The model {self.stored.card.model} reads {model.sentence_view}, not vectors of texts. Use embed_text."
            )
        assert text_vectors is not None
        views = to_views(text_vectors, "text", dict.fromkeys(model.text_encoders))
        centred = {
            name: encoder.shift(to_dense(views[name])) for name, encoder in self._centring.items() if name in views
        }
        return self._embedded(lambda: model.embed_sentences({**views, **centred}))

    @cached_property
    def _centring(self) -> dict[str, Centred]:
        """The text encoders of the index that subtract a mean from their vectors, by name."""
        stored = {name: self.stored.first.text_encoder(name) for name in self.stored.card.text_encoders}
        restored = {
            name: restore_encoder(TextEncoder, parameters, self.stored.folder)
            for name, parameters in stored.items()
            if CENTRED in parameters.settings
        }
        return {name: encoder for name, encoder in restored.items() if isinstance(encoder, Centred)}

    def _embedded(self, embed: Callable[[], Items]) -> np.ndarray:
        """Call `embed`, a function that embeds vectors of the caller, and return the embedded vectors (n, c).

        Raises InputError if the vectors of the caller do not have the dimensions that the model needs.
        """
        try:
            return one_vector_each(embed())
        except IntegrityError as error:
            model = self.stored.card.model
            raise InputError(
                f"{str(error).rstrip('.')}. Pass vectors of the encoders with which {model} was fitted."
            ) from error

    def apply(self, photographs: str | Path, output: str | Path, name: str | None = None) -> "Index":
        """Index other photos with the model of this index, and return the new index.

        `photographs` is a folder, a tar shard or a table of photos, with or without captions. `output` is the folder of
        the new run, and `name` the name of the new index (default: the name of the folder `output`). A repeated call
        continues an interrupted run. A script that calls this method does not need `if __name__ == "__main__"`.

        Raises UsageError if the model uses regions of images, if `photographs` has no photos, or if `output` contains
        another run or an index of other photos. Raises InputError if no photo can be used.
        """
        from pipeline.run.reading.application import apply_index
        from stages.catalogue import declared

        source = self.stored.first.folder
        shard = apply_index(declared(), source, Path(photographs), Path(output), name)
        assert shard is not None  # `ingest` raises an error if no photo can be read.
        return Index(shard.folder)

    def _require_vectors(self) -> None:
        if self._searcher.multi_vector:
            raise UsageError(
                f"The model {self.stored.card.model} has several vectors per image and caption. Use an index of another"
                " model, such as ncca."
            )

    @cached_property
    def _encoders(self) -> dict[str, Any]:
        return {name: one.open() for name, one in self._searcher.stored_encoders().items()}

    @cached_property
    def _limits(self) -> ImageLimits:
        from pipeline.config import loading

        return ImageLimits.from_settings(loading.load().collection)

    def _draw(self, hit: Hit) -> str:
        name = "::".join(filter(None, (hit.row["path"], hit.row.get("member"))))
        return figure(self._photos.read, self._limits, hit.row, f"{hit.rank}. {name}", f"score {hit.score:.3f}")

    @cached_property
    def _photos(self) -> ImageSources:
        return self.stored.photographs()

    def _photograph(self, image: str | Path | Image.Image) -> Photograph:
        """Read a photo in the form that the model needs: encoder -> features, or the bytes of the file if the model is
        a multi-vector model.

        Raises InputError if the photo cannot be read. Raises UsageError if `image` has a wrong type, or if it is an
        opened image and the model is a multi-vector model.
        """
        is_path = isinstance(image, str | os.PathLike)
        if not is_path and not isinstance(image, Image.Image):
            raise UsageError(
                f"image has the type {type(image).__name__}, but must be a path or an opened Pillow image. Pass the"
                " path of the photo."
            )
        if not is_path and self._searcher.multi_vector:
            raise UsageError(
                f"The model {self.stored.card.model} reads photos from files. Pass the path of the photo instead of an"
                " opened image."
            )
        try:
            if not is_path:
                return encode_image(to_rgb(image, self._limits), self._encoders)
            data = Path(image).read_bytes()
            return data if self._searcher.multi_vector else encode_image(decode(data, self._limits), self._encoders)
        # Pillow reads the pixels of an opened image only when they are used, so an opened image can fail here, too.
        except (OSError, SyntaxError, ValueError, InputError) as error:
            raise InputError(f"The image {image} cannot be read ({error}). Use another image.") from error

    def _row(self, vector: np.ndarray) -> np.ndarray:
        """Return a query vector as (1, c) float32.

        Raises InputError if the length of the vector is not the dimension c of the index, or if the vector is not
        finite. Raises UsageError if the model has several vectors per image.
        """
        self._require_vectors()
        row = to_array(vector, "query").reshape(1, -1)
        if row.shape[1] != self.stored.card.dim or not np.isfinite(row).all():
            raise InputError(
                f"The query vector has {row.shape[1]} numbers. It must have {self.stored.card.dim} numbers, none of"
                " which is NaN or infinite. Pass a vector of this kind, such as the result of embed_text."
            )
        return row
