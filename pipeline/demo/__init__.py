"""The synthetic demo collection: drawn scenes with labelled boxes, and either with true captions and their trees or
with weak text.

`scene` puts things into a place. `picture` draws the scene (with `places`, `creatures` and `drawing`) and finds out
which facts can be seen in it. `grammar` writes captions about the facts (with `words`), and `records` adds weak text
and assembles the records of the collection.
"""

from pipeline.demo.records import VERSION, DrawingSettings, SceneRecord, collection_texts, scene_record

__all__ = ["VERSION", "DrawingSettings", "SceneRecord", "collection_texts", "scene_record"]
