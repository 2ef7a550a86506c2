"""The literal lists of models, trainings, image encoders and generators: the only place that names them.

What else must know of one asks its spec, which costs no import of the class.
"""
