"""Models of the joint space: moments, fits, trainings, embeddings, and what they find."""
