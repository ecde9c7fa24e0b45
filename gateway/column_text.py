"""Text that every database takes."""


def column_text(text: str) -> str:
    """No NUL, which Postgres refuses, and no half of a character."""
    return text.replace("\0", "�").encode("utf-8", "replace").decode()
