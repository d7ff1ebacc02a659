"""The one place that names the distribution and its version."""

# As the package index knows it: `shoal`, the name to import and the command, is another project's there.
DISTRIBUTION = "shoal-crawler"
__version__ = "0.1.0"


def install_command(*extras: str) -> str:
    """The command that installs shoal with these extras."""
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'"
