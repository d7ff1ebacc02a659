"""The Helm chart, rendered: what a cluster would get, and the plain manifests of the package."""
