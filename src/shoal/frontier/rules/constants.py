"""The numbers of the frontier's rules. Every frontier uses these, the Lua scripts of the Redis frontier too.

One number per line and nothing else: the scripts' constants are made from this file."""

from __future__ import annotations

from typing import Final

# How an exit is marked in what a lane stores about its exits: one byte per exit.
HEALTHY: Final = 0  # used in its turn
QUARANTINED: Final = 1  # blocked or failed towards this host: rests until a time, nothing in flight
ON_PROBATION: Final = 2  # blocked or failed towards this host, with requests in flight that may prove it healthy
HELD: Final = 3  # healthy, but a lease of another lane holds it: tried again soon
REMOVED: Final = 4  # no longer in the pool
PARKED: Final = 5  # rests for every host until a time

# Exits.
STRIKES: Final = 3  # failures in a row towards different hosts after which an exit is parked
MAX_DOUBLINGS: Final = 60  # of a quarantine: two to a higher power would soon overflow
BUSY_SECONDS: Final = 0.25  # how soon a lane looks again at an exit that another lane holds
OFFER_SECONDS: Final = 60.0  # how long an exit that only some workers have stays in its pool without being offered
BYTES_PER_GB: Final = 1000000000  # for costs
MAX_KEPT_SESSIONS: Final = 2000  # of a crawl, those of accounts and of sites together

# Lanes.
SAME_INTERVAL: Final = 1e-9  # intervals that differ by no more are the same
SHORT_REST: Final = 5.0  # seconds; a rest that is no longer counts once for a wave of refusals
FAR_SECONDS: Final = 60.0  # what a lane's next start may lie further ahead than its interval and rests say

LONGEST_WHY: Final = 120  # characters that are kept of why a lane rests, is slow, or has a pace of its own

STAGE_CAP: Final = 1000000  # of a lane whose pages were fetched already: none

# Hosts that several crawls share.
WANTS_SECONDS: Final = 2.0  # how long after its lane is due a crawl may come for the start slot that it waits for
HEEDED_SECONDS: Final = 60.0  # how long after that its limits count for the other crawls
LOOK_AGAIN_SECONDS: Final = 0.1  # how soon a lane looks again at those that hold it back
MAX_LOOKS: Final = 3  # how often one call chooses lanes anew because some wait for other crawls
LEARNT_SECONDS: Final = 30 * 86400  # how long the pace that a search has found for a host is kept

# The time of a crawl.
STEP_SECONDS: Final = 0.25  # a clock that is further ahead than this was stepped
CLOCK_SECONDS: Final = 1.0  # how often a crawl's latest time is noted
LONGEST_BREAK: Final = 60.0  # between signs of workers; after a longer one nobody worked meanwhile
AWAY_SHARE: Final = 2  # of a lease: half of it without a sign of any worker; leases are renewed every third

# Tasks.
MAX_PRIORITY: Final = 4194303  # 2^22 - 1; higher priorities count as this one; the lowest is its negative
TOKENS_PER_MILLISECOND: Final = 1024
SUSPECT_LOSSES: Final = 2  # leases in a row lost with their worker, after which a task is lent alone
MAX_COUNTED: Final = 65535  # losses and free retries that a task counts at most
MAX_KINDS: Final = 16  # of the tasks of one crawl, http among them
EPOCHS_PER_CRAWL: Final = 1048576  # a crawl that is deleted and opened again must not repeat an old epoch

# Keys that expire.
GENERATIONS_PER_TTL: Final = 2  # a generation lasts half a dedup_ttl
KEPT_GENERATIONS: Final = 3  # keys are known through their generation and the next two

# Feeders.
FEEDER_SECONDS: Final = 30.0  # how long a feeder may be silent before it counts as lost
STAYER: Final = "stays "  # begins the name of one that only keeps the crawl open: nothing is lost with it

# What one call does at most, so that it stays short; the next call does the rest.
MAX_RECLAIMED: Final = 200  # expired leases
MAX_WOKEN: Final = 500  # delayed tasks that are due
MAX_PUT_OFF: Final = 500  # exits found parked or held, while an exit is picked
MAX_GIVEN_UP: Final = 100  # tasks of a lane whose exits rested for too long
MAX_BROUGHT_BACK: Final = 20  # lanes whose next start lies too far ahead
MAX_TAKEN_BYTES: Final = 4194304  # entries of an inbox are taken until they have so many

# Seconds after which a worker asks for leases again, at least and at most.
MIN_ASK_AGAIN: Final = 0.01
MAX_ASK_AGAIN: Final = 1.0

# What people look at.
MOST_COUNTED: Final = 20000  # dead letters that are looked at to count those of a filter

# What is kept for people to look at.
MAX_SAMPLES: Final = 20  # URLs per reason for which links were rejected
BEAT_SECONDS: Final = 86400  # among all workers: those that gave a sign of life within a day
WORKERS_KEPT: Final = 200  # among the workers of one crawl: so many of the latest
WORKERS_KEPT_SECONDS: Final = 90 * 86400  # for so long after their last sign of life

# The history of a crawl, in seconds.
POINT_SECONDS: Final = 10  # one point in so many
POINTS_KEPT_SECONDS: Final = 86400  # is kept for so long
LONG_POINT_SECONDS: Final = 300  # and one in so many
LONG_POINTS_KEPT_SECONDS: Final = 31 * 86400  # is kept for so long

# Records that could not be read.
LATEST_TIME: Final = 1e13  # seconds; a stored time beyond it is damaged
LONGEST_BAD: Final = 65536  # bytes that are kept of one
MOST_BAD: Final = 1000  # that are kept
