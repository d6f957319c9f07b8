"""The command line: one module per command, `render` for what they print."""
