"""`python -m clarion` is the command line."""

from clarion.cli.main import main

if __name__ == "__main__":
    main()
