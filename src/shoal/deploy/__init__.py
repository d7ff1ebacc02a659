"""Files that run a spider on servers: container image, compose, Kubernetes, systemd. `templates/` has their text."""
