"""Our end of the guest: its frames, the connection that carries them, and a Handle over it for any substrate."""
