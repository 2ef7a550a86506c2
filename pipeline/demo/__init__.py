"""The embedded demo collection: drawn scenes with true sentences, their trees, boxes, and a larger weak set.

One image's way: `world` says what there is -> `scene` puts things into a place -> `picture` draws them (`places`,
`animals`, `people`, `objects`, `pen`) -> `facts` reads off what can be seen -> `grammar` says it (`words`, `trees`), or
`weak` says something else -> `records` puts all of it together.
"""

from pipeline.demo.records import VERSION, DrawingSettings, SceneRecord, collection_texts, scene_record

__all__ = ["VERSION", "DrawingSettings", "SceneRecord", "collection_texts", "scene_record"]
