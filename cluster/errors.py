"""What goes wrong, in one sentence that says what to do."""


class ClusterError(Exception):
    """The cluster cannot be brought up as things are."""
