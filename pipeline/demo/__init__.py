"""The embedded demo collection: drawn scenes with true sentences, their trees, boxes, and a larger weak set.

`scene` puts things into a place, `picture` draws them (with `places`, `creatures` and `drawing`) and reads off what can
be seen, `grammar` says it (with `words`), and `records` adds weak text and puts all of it together.
"""

from pipeline.demo.records import VERSION, DrawingSettings, SceneRecord, collection_texts, scene_record

__all__ = ["VERSION", "DrawingSettings", "SceneRecord", "collection_texts", "scene_record"]
