"""Text processing: splits texts into terms, builds vocabularies, parses sentences, and reads word vectors."""
