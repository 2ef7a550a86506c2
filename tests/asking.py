"""A job's shell starts this in place of `jointspace`: it asks the process at a socket (warm.py) to run the command.

python -I -S asking.py SOCKET ARGUMENTS...
"""

import marshal
import os
import socket
import sys

if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as server:
        server.connect("\0" + sys.argv[1])
        socket.send_fds(server, [marshal.dumps((sys.argv[2:], os.getcwd(), dict(os.environ)))], [0, 1, 2])
        server.shutdown(socket.SHUT_WR)
        sys.exit(int(server.recv(16) or 70))
