"""Our end of bare processes on this machine: start them, see them end, and kill all that one action started.

Three kinds of process, all children of the first, none of them the user's own (which is never forked):

    supervisor   one per substrate; small, so that forking it is cheap; owns nothing but its keepers
    keeper       one per sandbox; holds the sandbox's directory and mount namespace; dies when its client is gone
    runner       one per action or session; every process the action starts, however it detaches, stays below it

Modules that run inside them use the standard library alone: `supervisor`, `keeper`, `runner`, `shell_session`,
`file_work`, `root`, `kernel`, `descendants`, `directories`, `packets`. Modules of the client: `handle`, `sandboxes`,
`link`, `process`, `session`, `ends`, `writable`.
"""
