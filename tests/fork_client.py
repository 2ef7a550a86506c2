"""Asks the process that listens at a socket (forked_programs.py) to run a command of jointspace.

    python -I -S fork_client.py SOCKET ARGUMENTS...

The shells of Snakemake's jobs start this program in place of `jointspace`. The command gets the folder, the environment
variables, and the standard input and outputs of this program. The exit code is the exit code of the command, or 70 if
the command crashes.
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
