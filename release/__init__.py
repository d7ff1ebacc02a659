"""A release of shoal: the CHANGELOG cut, the packages built and checked. It uploads nothing."""
