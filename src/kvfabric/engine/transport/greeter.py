"""How a connection opens: both greet, then a sender may show its KV pool to a peer of its host.

The pool's file descriptor goes over the Unix socket (SCM_RIGHTS) after the greetings have been
compared: the kernel hands exactly that file to exactly that connection. Opening ``/proc/PID/fd/N``
instead would trust numbers that a peer names, and a process id can be another process's by then.
"""

import os
import socket
import struct

from kvfabric.engine.transport.connection import Connection
from kvfabric.engine.transport.handshake import HandshakeError, Identity, greet
from kvfabric.engine.transport.shared_pool import (
    MAX_BLOCKS,
    MappedPool,
    PoolRefusedError,
    SharedPool,
)

POOL_BLOCKS, MAPS_POOLS = "pool_blocks", "maps_pools"
_UCRED = struct.Struct("3i")


class Greeter:
    """What this worker says, and shows, when a connection opens."""

    def __init__(self, identity: Identity, pool: SharedPool | None = None) -> None:
        """Speak for a worker; without a pool that peers may map, bytes go through sockets."""
        self.identity, self.pool = identity, pool

    @property
    def digest(self) -> int:
        """Return what stands in the header of every frame."""
        return self.identity.digest

    def greet_receiver(self, connection: Connection, deadline_ns: int) -> bool:
        """Greet as the sender; return whether the peer has this worker's pool now.

        Raises:
            HandshakeError: the peers do not fit together, or are of different users.
            ProtocolError: what the peer sent is no greeting.
            ConnectionEndedError: it did not greet in time.
        """
        pool = self._pool_for(connection)
        says = {} if pool is None else {POOL_BLOCKS: pool.shape.num_blocks}
        theirs = greet(connection, self.identity, deadline_ns, says)
        if pool is None or theirs.get(MAPS_POOLS) != 1:
            return False
        _check_user(connection.sock)
        connection.send_fd(pool.fd, deadline_ns)
        return True

    def greet_sender(self, connection: Connection, deadline_ns: int) -> MappedPool | None:
        """Greet as the receiver; return the peer's pool if it shows one. Raises likewise."""
        pool = self._pool_for(connection)
        says = {} if pool is None else {MAPS_POOLS: 1}
        theirs = greet(connection, self.identity, deadline_ns, says)
        num_blocks = theirs.get(POOL_BLOCKS)
        if pool is None or num_blocks is None:
            return None
        if type(num_blocks) is not int or not 0 < num_blocks <= MAX_BLOCKS:
            raise HandshakeError(f"a KV pool of {str(num_blocks)[:80]!r} blocks")
        fd = connection.receive_fd(deadline_ns)
        try:
            return MappedPool(fd, pool, num_blocks)
        except PoolRefusedError as error:
            raise HandshakeError(str(error)) from None

    def _pool_for(self, connection: Connection) -> SharedPool | None:
        return self.pool if connection.sock.family == socket.AF_UNIX else None


def _check_user(sock: socket.socket) -> None:
    """Refuse a peer of another user, by the kernel's word."""
    answer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    user, own = _UCRED.unpack(answer)[1], os.geteuid()
    if user != own:
        raise HandshakeError(
            f"the peer is of user {user}, this worker of {own}; KV transport sockets takes both"
        )
