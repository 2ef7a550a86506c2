"""Neural models on stored features: sentence encoders over word vectors, ranking losses, and their training."""
