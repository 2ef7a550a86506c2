"""Neural models on stored image features: sentence encoders over word vectors, ranking losses, and the training
loop."""
