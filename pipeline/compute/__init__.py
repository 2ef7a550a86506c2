"""Where and how arrays are computed: devices, precision, worker processes, and arrays of rows of different lengths."""
