"""The way out of a sandbox that has loopback only: a proxy on the host's side, behind a socket that listens inside.

    policy    who may be reached: parsed, matched, told in one sentence; no input or output
    routes    asking the kernel whether an address is this host's own
    client    our end: the proxy process of a substrate, and a `Door` for each sandbox
    proxy     the process: doors by descriptor, and what changes them
    door      one sandbox's listener, its connections and their bounds
    request   what a connection asks for: HTTP CONNECT, an absolute-form request, SOCKS5
    reach     from a request to a connected socket, by way of the policy
    pump      bytes both ways

Modules that run inside the process use the standard library alone: all but `client`.
"""
