"""FAISS indices of one modality: building, measuring, reading back, and searching them by the other."""
