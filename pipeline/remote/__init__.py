"""Object stores and web servers by fsspec's file systems: s3://, https://, http://, and whatever else it speaks.

What lies there is named by a RemotePath, and fetched whole to local scratch or read by range. Credentials are those
that the file system's library finds in its environment.
"""
