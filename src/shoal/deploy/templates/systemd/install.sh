#!/bin/sh
# Installs this fleet on this machine, or brings it up to date; as root. Keeps an existing /etc/@unit@/env.
set -eu
cd "$(dirname "$0")"
id shoal >/dev/null 2>&1 || useradd --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin shoal
install --directory /opt/@unit@/spiders /etc/@unit@
install --directory --mode 700 /etc/@unit@/secrets
test -x /opt/@unit@/venv/bin/pip || python3 -m venv /opt/@unit@/venv
/opt/@unit@/venv/bin/pip install --quiet --find-links wheels "shoal-crawler[@extras@]==@version@" -r requirements.txt
cp -R spiders/. /opt/@unit@/spiders/
install --mode 644 spot_notice.py /opt/@unit@/spot_notice.py
install --directory --owner shoal --group shoal /opt/@unit@/spiders/shoal-logs
install --mode 600 secrets/* /etc/@unit@/secrets/
test -e /etc/@unit@/env || install --mode 644 env /etc/@unit@/env
install --mode 644 units/* /etc/systemd/system/
systemctl daemon-reload
