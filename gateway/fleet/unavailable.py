"""What a directory that does not answer raises."""


class DirectoryUnavailable(Exception):
    """The place did not answer: what it said last holds."""
