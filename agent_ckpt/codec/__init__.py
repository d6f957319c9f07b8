"""Bytes and values: pure functions, no I/O (design: docs/design.md, "Value codec" and "Frames")."""
