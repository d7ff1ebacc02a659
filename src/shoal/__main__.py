"""`python -m shoal` is the same as `shoal`."""

from shoal.cli.main import main

if __name__ == "__main__":
    main()
