"""What a sandbox without a guest can do through its own exec: files, tar streams, and the end of one action's processes.

It knows only the seam: something that runs an `Exec`. Inside the sandbox it wants POSIX sh and coreutils, or busybox.
"""
