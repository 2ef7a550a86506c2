"""Where and how arrays are computed: devices, precision, worker processes, sums over shards on a Dask cluster, arrays
of rows of different lengths, and arrays whose rows are read on request."""
