"""Asks the process at a socket (forked_programs.py) to run a command, in place of the program `jointspace`.

    python -I -S fork_client.py SOCKET ARGUMENTS...

The shells of Snakemake's jobs start this program.
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
