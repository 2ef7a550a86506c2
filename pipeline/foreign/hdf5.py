"""HDF5 files that may come from other people."""

import h5py


def plain_dataset(file: h5py.File, name: str) -> h5py.Dataset | None:
    """The dataset `name` of an open file; None for a group. Raises ValueError for one that would read other files."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):  # nothing that it leads to is opened
        raise ValueError(f"{name} is a link")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        return None
    if dataset.external or dataset.is_virtual:
        raise ValueError(f"{name} reads other files")
    return dataset
