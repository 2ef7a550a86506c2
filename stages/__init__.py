"""One click command for each stage: reader, one pure call, writer."""
