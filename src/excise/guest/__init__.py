"""Our end of the guest: the program, its wire, and a sandbox as a Handle over it."""
