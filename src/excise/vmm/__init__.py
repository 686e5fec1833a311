"""Our end of a virtual machine monitor: a kernel, a root disk, an initial root, and QEMU, for substrates that make machines."""
