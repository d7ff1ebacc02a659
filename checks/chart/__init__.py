"""The Helm chart, rendered without Helm: what a cluster would get, and the plain manifests of the package."""
