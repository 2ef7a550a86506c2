"""Sentences to terms, a vocabulary of them, and sparse tf-idf vectors (Gong et al. 2014, section 2.3)."""
