"""FAISS indexes of images or captions: building, measuring, reading and searching them."""
