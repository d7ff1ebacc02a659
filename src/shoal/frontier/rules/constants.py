"""The constants of the frontier's rules, for all frontiers; the Lua scripts get them from here by name."""

from __future__ import annotations

from typing import Final

# The marks of exits in a lane's roster: one byte per exit.
HEALTHY: Final = 0  # used in its turn
QUARANTINED: Final = 1  # blocked or failed towards this host: rests until a time, nothing in flight
ON_PROBATION: Final = 2  # blocked or failed towards this host, with requests in flight that may prove it healthy
HELD: Final = 3  # healthy, but a lease of another lane holds it: tried again soon
REMOVED: Final = 4  # no longer in the pool
PARKED: Final = 5  # rests for every host until a time

# Exits.
STRIKES: Final = 3  # failures in a row towards different hosts after which an exit is parked
MAX_DOUBLINGS: Final = 60  # of a quarantine: two to a higher power would soon overflow
BUSY_SECONDS: Final = 0.25  # how soon a lane checks again an exit that another lane holds
OFFER_SECONDS: Final = 60.0  # how long an exit that only some workers have stays in its pool without being offered
BYTES_PER_GB: Final = 1000000000  # for costs
MAX_KEPT_SESSIONS: Final = 2000  # of a crawl, those of accounts and of sites together

# Lanes.
SAME_INTERVAL: Final = 1e-9  # intervals that differ by no more are the same
SHORT_REST: Final = 5.0  # seconds; a rest that is no longer counts once for a wave of refusals
FAR_SECONDS: Final = 60.0  # how much later a lane's next start may be than its interval and rests explain

LONGEST_WHY: Final = 120  # characters kept of the reason why a lane rests, is slow, or has a pace of its own

STAGE_CAP: Final = 1000000  # the cap of lanes for fetched pages: practically none

# Hosts that several crawls share.
WANTS_SECONDS: Final = 2.0  # how long after its lane is due a crawl may take the start slot that it waits for
HEEDED_SECONDS: Final = 60.0  # how long after a lane is due its limits count for the other crawls
LOOK_AGAIN_SECONDS: Final = 0.1  # how soon a lane checks again the lanes that hold it back
MAX_LOOKS: Final = 3  # how often one call chooses lanes anew because other crawls hold some back
LEARNT_SECONDS: Final = 30 * 86400  # how long the pace that a search has found for a host is kept

# The time of a crawl.
STEP_SECONDS: Final = 0.25  # a clock that is further ahead than this was stepped
CLOCK_SECONDS: Final = 1.0  # how often a crawl's latest time is noted
LONGEST_BREAK: Final = 60.0  # between calls of workers; in a longer break nobody worked
AWAY_SHARE: Final = 2  # half a lease length without any call of a worker: the frontier was unreachable

# Tasks.
MAX_PRIORITY: Final = 4194303  # 2^22 - 1; higher priorities count as this one; the lowest is its negative
TOKENS_PER_MILLISECOND: Final = 1024
SUSPECT_LOSSES: Final = 2  # leases in a row lost with their worker, after which a task is leased alone
MAX_COUNTED: Final = 65535  # counters of losses and free retries of a task stop here
MAX_KINDS: Final = 16  # kinds of tasks of one crawl, including http
EPOCHS_PER_CRAWL: Final = 1048576  # a crawl that is deleted and opened again must not repeat an old epoch

# Keys that expire.
GENERATIONS_PER_TTL: Final = 2  # a generation lasts half a dedup_ttl
KEPT_GENERATIONS: Final = 3  # keys are known during their generation and the next two

# Feeders.
FEEDER_SECONDS: Final = 30.0  # how long a feeder may be silent before it counts as lost
STAYER: Final = "stays "  # begins the name of a feeder that only keeps the crawl open: nothing is lost with it

# The most that one call does, so that it stays short; the next call does the rest.
MAX_RECLAIMED: Final = 200  # expired leases
MAX_WOKEN: Final = 500  # delayed tasks that are due
MAX_PUT_OFF: Final = 500  # exits found parked or held, while an exit is picked
MAX_GIVEN_UP: Final = 100  # tasks of a lane whose exits rested for too long
MAX_BROUGHT_BACK: Final = 20  # lanes whose next start is impossibly late
MAX_TAKEN_BYTES: Final = 4194304  # of inbox entries: the entry that reaches this is the last of its batch

# Seconds after which a worker asks for leases again, at least and at most.
MIN_ASK_AGAIN: Final = 0.01
MAX_ASK_AGAIN: Final = 1.0

# Kept and counted for people.
MOST_COUNTED: Final = 20000  # dead letters examined to count the matches of a filter
MAX_SAMPLES: Final = 20  # URLs per reason for which links were rejected
BEAT_SECONDS: Final = 86400  # how long heartbeats are kept among those of all workers
WORKERS_KEPT: Final = 200  # latest workers of one crawl whose heartbeats are kept
WORKERS_KEPT_SECONDS: Final = 90 * 86400  # how long they are kept

# The history of a crawl: one point per step, in two steps.
POINT_SECONDS: Final = 10
POINTS_KEPT_SECONDS: Final = 86400
LONG_POINT_SECONDS: Final = 300
LONG_POINTS_KEPT_SECONDS: Final = 31 * 86400

# Records that could not be read.
LATEST_TIME: Final = 1e13  # seconds; a stored time beyond it is damaged
LONGEST_BAD: Final = 65536  # bytes kept of each
MOST_BAD: Final = 1000  # how many are kept
