"""Asking the kernel whether an address is this host's own: its routes know, whatever the interfaces are called."""

import errno
import os
import socket
import struct

from excise.network.policy import Address

_NETLINK_ROUTE = 0
_RTM_GETROUTE = 26
_NLM_F_REQUEST = 1
_NLMSG_ERROR = 2
_RTA_DST = 1
_RTN_LOCAL = 2
_HEAD = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_NUMBER = struct.Struct("=i")


def is_own(address: Address) -> bool:
    """Whether a packet for this address would stay on this host. OSError if there is no way to it at all."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    target = address.packed
    body = _ROUTE.pack(family, 8 * len(target), 0, 0, 0, 0, 0, 0, 0)
    body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(target), _RTA_DST) + target
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE) as asking:
        asking.sendto(_HEAD.pack(_HEAD.size + len(body), _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0) + body, (0, 0))
        answer = asking.recv(8192)  # the kernel has put it there before sendto returned
    kind = _HEAD.unpack_from(answer)[1]
    if kind == _NLMSG_ERROR:
        number = -_NUMBER.unpack_from(answer, _HEAD.size)[0]
        raise OSError(number or errno.EIO, os.strerror(number or errno.EIO))
    return _ROUTE.unpack_from(answer, _HEAD.size)[7] == _RTN_LOCAL
