"""The commands of jointspace and the stages of a run. A stage reads its inputs, computes, and writes its artefact."""
