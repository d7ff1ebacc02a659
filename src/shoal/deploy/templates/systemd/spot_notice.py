"""Waits for the notice that this spot machine will be taken away, then stops the given units.

For AWS, whose metadata service has to be polled. Made by `shoal deploy systemd`; needs only Python. SPOT_METADATA: the
address of the service; SPOT_SECONDS: the interval of polling."""

import http.client
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

ADDRESS = os.environ.get("SPOT_METADATA", "http://169.254.169.254")
PAUSE_SECONDS = float(os.environ.get("SPOT_SECONDS", "5"))
VALID_SECONDS = "300"
# Not through a proxy: the service is this machine's own.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def asked(path: str, *, method: str = "GET", **headers: str) -> str:
    """The answer of the metadata service; empty: nothing at this path."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(ADDRESS + path, method=method, headers=named)  # noqa: S310 -- an address of ours
    try:
        with OPENER.open(request, timeout=2) as answer:
            text: str = answer.read().decode()
            return text
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return ""


def notice() -> str:
    """The notice, as the service words it; empty: none."""
    token = asked("/latest/api/token", method="PUT", X_aws_ec2_metadata_token_ttl_seconds=VALID_SECONDS)
    return asked("/latest/meta-data/spot/instance-action", X_aws_ec2_metadata_token=token)


def main(units: list[str]) -> int:
    """Wait for the notice; returns the return code of `systemctl stop`."""
    said = ""
    while True:
        try:
            found, problem = notice(), ""
        except (OSError, http.client.HTTPException) as error:
            found, problem = "", f"the metadata service at {ADDRESS} does not answer: {error}; asking again"
        if found:
            say(f"this machine will be taken away ({found}): stopping {' '.join(units)}")
            return subprocess.call(["systemctl", "stop", *units])  # noqa: S603, S607 -- systemd's own, from its PATH
        if problem and problem != said:
            say(problem)
        said = problem
        time.sleep(PAUSE_SECONDS)


def say(line: str) -> None:
    """A line for the journal."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
