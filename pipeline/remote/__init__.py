"""Object stores and web servers: s3://, gs://, https:// and http://, by fsspec's file systems.

What lies there is named by a RemotePath, fetched whole to local scratch or read by range, and tried again as long as
the server may only be busy. Credentials are those that the file system's library finds in its environment.
"""
