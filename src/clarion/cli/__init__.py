"""The command line: each command in its file, wired together in `main`."""
