"""The C core that serves requests without Python, as Python sees it."""
