"""Cases for the frontier's rules, as plain values: the Python functions in `shoal.frontier.rules` and their twins in
Lua are driven over the same cases.

Each case is (given, expected), in the order that the comment above its list names. A time of None is never."""

from __future__ import annotations

NOW = 1000.0

# quarantine, max_quarantine, failures in a row → seconds of rest
REST_SECONDS = [
    ((60.0, 3600.0, 1), 60.0),
    ((60.0, 3600.0, 2), 120.0),
    ((60.0, 3600.0, 6), 1920.0),
    ((60.0, 3600.0, 7), 3600.0),
    ((60.0, 3600.0, 5000), 3600.0),
    ((0.5, 8.0, 3), 2.0),
    ((0.0, 8.0, 4), 0.0),
    ((10.0, 4.0, 1), 4.0),
    ((1.0, 1e30, 61), 2.0**60),
    ((1.0, 1e30, 62), 2.0**60),
]

# quarantine, max_quarantine, streak before, quarantined until → streak, quarantined until
QUARANTINE_AFTER = [
    ((60.0, 3600.0, 0, 0.0), (1, 1060.0)),
    ((60.0, 3600.0, 0, 5000.0), (1, 1060.0)),  # what was before a success does not count
    ((60.0, 3600.0, 1, 1000.5), (1, 1000.5)),  # one reason to rest, not two
    ((60.0, 3600.0, 1, 1000.0), (2, 1120.0)),
    ((60.0, 3600.0, 9, 10.0), (10, 4600.0)),
    ((0.0, 8.0, 3, 1000.0), (4, 1000.0)),
]

# quarantine, max_quarantine, lane, token, then (strikes, lane struck last, parked until, parkings, trial) before
# → the same five after a failure
PARKING_AFTER = [
    ((60.0, 3600.0, "a", 7, (0, "", 0.0, 0, 0)), (1, "a", 0.0, 0, 0)),
    ((60.0, 3600.0, "a", 7, (1, "a", 0.0, 0, 0)), (1, "a", 0.0, 0, 0)),  # the same lane again is no new strike
    ((60.0, 3600.0, "b", 7, (1, "a", 0.0, 0, 0)), (2, "b", 0.0, 0, 0)),
    ((60.0, 3600.0, "c", 7, (2, "b", 0.0, 0, 0)), (3, "c", 1060.0, 1, 0)),
    ((60.0, 3600.0, "d", 7, (3, "c", 1060.0, 1, 0)), (4, "d", 1060.0, 1, 0)),  # it rests already
    ((60.0, 3600.0, "d", 7, (3, "c", 1060.0, 1, 7)), (4, "d", 1120.0, 2, 0)),  # the lease that tries it failed
    ((60.0, 3600.0, "d", 7, (3, "c", 1060.0, 1, 8)), (4, "d", 1060.0, 1, 8)),  # another lease tries it
    ((60.0, 3600.0, "c", 7, (3, "c", 1000.0, 1, 0)), (3, "c", 1120.0, 2, 0)),  # parked until now is parked no more
    ((60.0, 100.0, "c", 7, (3, "c", 10.0, 4, 0)), (3, "c", 1100.0, 5, 0)),
]

# quarantine, token, then (strikes, lane struck last, parked until, parkings, trial) before → the same five when a lease
# begins to use the exit
PARKING_ON_TRIAL = [
    ((60.0, 7, (0, "", 0.0, 0, 0)), (0, "", 0.0, 0, 0)),
    ((60.0, 7, (2, "b", 0.0, 0, 0)), (2, "b", 0.0, 0, 0)),
    ((60.0, 7, (3, "c", 900.0, 2, 0)), (3, "c", 1060.0, 2, 7)),
    ((60.0, 7, (5, "c", 900.0, 2, 6)), (5, "c", 1060.0, 2, 7)),
]

# parked until, whether another lease holds it, next start → None, or the exit's mark and the time until it is put off
PUT_OFF = [
    ((0.0, False, 0.0), None),
    ((1000.0, False, 0.0), None),
    ((1000.5, False, 0.0), (5, 1000.5)),
    ((1000.5, True, 0.0), (5, 1000.5)),
    ((1002.0, False, 1002.0), None),  # it is not needed before
    ((1002.5, False, 1002.0), (5, 1002.5)),
    ((0.0, True, 0.0), (3, 1000.25)),
    ((0.0, True, 1003.0), (3, 1003.0)),
]

# rotate, kept since, parked until → whether a host of a sticky pool keeps its healthy exit
KEEPS_EXIT = [
    ((0.0, 1.0, 0.0), True),
    ((0.0, 1.0, 1000.0), True),
    ((0.0, 1.0, 1000.5), False),
    ((50.0, 950.5, 0.0), True),
    ((50.0, 950.0, 0.0), False),
]

# starved since, whether an exit is healthy → starved since
STARVED_SINCE = [
    ((0.0, True), 0.0),
    ((900.0, True), 0.0),
    ((0.0, False), 1000.0),
    ((900.0, False), 900.0),
]

# patience (None: there is no such pool), starved since, whether an exit is healthy, when the first rest ends
# → whether the lane gives its tasks up
GIVES_UP = [
    ((None, 0.0, False, None), True),
    ((100.0, 0.0, False, None), False),
    ((100.0, 900.5, False, None), False),
    ((100.0, 900.0, False, None), True),
    ((100.0, 900.0, True, None), False),
    ((100.0, 900.0, False, 1000.0), True),
    ((100.0, 900.0, False, 999.5), False),  # its rest was over in time: it is tried
    ((100.0, 800.0, False, 899.5), False),
    ((100.0, 800.0, False, 950.0), True),
]

# when the next exit is free (None: never), patience, starved since → when to look at the lane again, 0: now
LOOK_AGAIN_AT = [
    ((0.0, 100.0, 0.0), 0.0),
    ((1000.0, 100.0, 0.0), 0.0),
    ((1000.5, 100.0, 0.0), 1000.5),
    ((None, 100.0, 0.0), None),
    ((None, 100.0, 950.0), 1050.0),
    ((1020.0, 100.0, 950.0), 1020.0),
    ((1080.0, 100.0, 950.0), 1050.0),
    ((990.0, 100.0, 950.0), 0.0),
]

# A roster is (marks of the exits by index, in flight by index, next starts by index, index where the ring goes on).
# roster, exits of the pool, cap → index of the next exit in the ring that is due; None: none is
DUE_IN_RING = [
    ((([], [], [], 0), 3, 1), 0),
    ((([], [], [], 2), 3, 1), 2),
    ((([], [], [], 3), 3, 1), 0),
    ((([], [(0, 1)], [], 0), 3, 1), 1),
    ((([], [(0, 1)], [], 0), 3, 2), 0),
    ((([], [(2, 1)], [], 2), 3, 1), 0),
    ((([], [], [(1, 1000.5)], 1), 3, 1), 2),
    ((([], [], [(1, 1000.0)], 1), 3, 1), 1),
    ((([1, 0, 4], [], [], 0), 3, 1), 1),
    ((([1, 0, 4], [], [], 2), 3, 1), 1),
    ((([2, 3, 5], [], [], 0), 4, 1), 3),
    ((([1, 2, 5], [], [], 1), 3, 1), None),
    ((([], [(0, 1), (1, 1)], [(2, 1001.0)], 0), 3, 1), None),
    ((([], [], [], 0), 0, 1), None),
]

# roster, when the first rest ends (None: none rests), exits of the pool, cap → when an exit is free next, 0: now;
# None: not before a request ends
NEXT_FREE = [
    ((([], [], [], 0), None, 3, 1), 0.0),
    ((([], [(0, 1), (1, 1)], [], 0), None, 2, 1), None),
    ((([], [(0, 1), (1, 1)], [], 0), None, 2, 2), 0.0),
    ((([], [(0, 1)], [(1, 1002.0)], 0), None, 2, 1), 1002.0),
    ((([], [], [(0, 1003.0), (1, 1002.0)], 0), None, 2, 1), 1002.0),
    ((([1, 1], [], [], 0), 1005.0, 2, 1), 1005.0),
    ((([1, 1], [], [], 0), 1000.0, 2, 1), 0.0),
    ((([1, 0], [], [(1, 1002.0)], 0), 1005.0, 2, 1), 1002.0),
    ((([1, 0], [(1, 1)], [(1, 1002.0)], 0), 1005.0, 2, 1), 1005.0),
    ((([2, 0], [(0, 1)], [(1, 1006.0)], 0), None, 2, 1), 1006.0),
]

# cost, cost per gigabyte (both None: there is no such pool), verdict (None: no report), bytes → cost
COSTS = [
    ((0.5, 2.0, "ok", 0), 0.5),
    ((0.5, 2.0, "ok", 250_000_000), 1.0),
    ((0.5, 2.0, "failed", 500_000_000), 1.5),
    ((0.5, 2.0, "used", 1_000_000_000), 2.5),
    ((0.5, 2.0, "unused", 0), 0.0),
    ((0.5, 2.0, None, 0), 0.5),
    ((None, None, "ok", 500_000_000), 0.0),
    ((0.0, 0.0, "ok", 500_000_000), 0.0),
]

# start, then next start, interval, blocked until → last start, next start
TAKE_SLOT = [
    ((1000.0, 990.0, 2.0, 0.0), (1000.0, 1002.0)),
    ((1004.0, 1004.0, 2.0, 0.0), (1004.0, 1006.0)),
    ((1004.0, 1000.0, 2.0, 0.0), (1004.0, 1006.0)),  # an exit delays it, and with an interval the lane too
    ((1004.0, 990.0, 0.0, 0.0), (1000.0, 1000.0)),  # without one it does not
    ((1004.0, 1002.0, 0.0, 0.0), (1002.0, 1002.0)),
    ((1000.0, 990.0, 0.0, 0.0), (1000.0, 1000.0)),
    ((1000.0, 990.0, 2.0, 1030.0), (1000.0, 1030.0)),
]

# next start, last start, interval, blocked until, missed by → start
RESERVED_START = [
    ((1002.0, 1000.0, 2.0, 0.0, 0.0), 1002.0),
    ((990.0, 988.0, 2.0, 0.0, 0.0), 1000.0),
    ((1001.5, 999.5, 2.0, 0.0, 0.5), 1000.0),  # the latest slot: it is moved
    ((1001.5, 999.5, 2.0, 0.0, 0.9), 1000.0),  # also if the two clocks do not quite agree
    ((1003.5, 1001.5, 2.0, 0.0, 0.5), 1003.5),  # a later one was lent
    ((1005.0, 999.5, 2.0, 1005.0, 0.5), 1005.0),  # the lane rests
    ((1000.0, 999.5, 0.0, 0.0, 0.5), 1000.0),
]

# A pace is (next start, last start, blocked until, interval, base interval, cap).
# pace, then interval, if_interval, base_interval, cap, rest_seconds, and perhaps started, of the update → pace
UPDATE_PACE = [
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (None, None, None, None, None)), (1001.0, 999.0, 0.0, 2.0, 2.0, 8)),
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (4.0, None, None, None, None)), (1003.0, 999.0, 0.0, 4.0, 2.0, 8)),
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (4.0, 2.0, None, None, None)), (1003.0, 999.0, 0.0, 4.0, 2.0, 8)),
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (4.0, 2.0 + 5e-10, None, None, None)), (1003.0, 999.0, 0.0, 4.0, 2.0, 8)),
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (4.0, 2.1, None, None, None)), (1001.0, 999.0, 0.0, 2.0, 2.0, 8)),
    (((1008.0, 998.0, 0.0, 10.0, 2.0, 8), (1.0, None, None, None, None)), (1000.0, 998.0, 0.0, 1.0, 2.0, 8)),
    (((990.0, 980.0, 0.0, 10.0, 2.0, 8), (1.0, None, None, None, None)), (990.0, 980.0, 0.0, 1.0, 2.0, 8)),
    (((1008.0, 998.0, 1005.0, 10.0, 2.0, 8), (1.0, None, None, None, None)), (1005.0, 998.0, 1005.0, 1.0, 2.0, 8)),
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (None, None, 3.0, 4, None)), (1001.0, 999.0, 0.0, 2.0, 3.0, 4)),
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (None, None, None, None, 30.0)), (1030.0, 999.0, 1030.0, 2.0, 2.0, 8)),
    (((1050.0, 999.0, 1050.0, 2.0, 2.0, 8), (None, None, None, None, 30.0)), (1050.0, 999.0, 1050.0, 2.0, 2.0, 8)),
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (4.0, None, 4.0, 1, 30.0)), (1030.0, 999.0, 1030.0, 4.0, 4.0, 1)),
    # A refusal of a request that started after the last slow-down begins a wave, whatever interval it saw.
    (((1001.0, 999.0, 990.0, 2.0, 2.0, 8), (4.0, 2.0, None, None, None, 991.0)), (1003.0, 999.0, 1000.0, 4.0, 2.0, 8)),
    (((1001.0, 999.0, 990.0, 2.0, 2.0, 8), (4.0, 1.8, None, None, None, 990.0)), (1003.0, 999.0, 1000.0, 4.0, 2.0, 8)),
    (((990.0, 980.0, 0.0, 2.0, 2.0, 8), (4.0, 2.0, None, None, None, 980.0)), (990.0, 980.0, 1000.0, 4.0, 2.0, 8)),
    # One that asks for no more than the lane does already changes nothing.
    (((1001.0, 997.0, 990.0, 4.0, 2.0, 8), (4.0, 2.0, None, None, None, 995.0)), (1001.0, 997.0, 990.0, 4.0, 2.0, 8)),
    # The others of a wave started before it, and neither slow the lane nor rest it for a short time.
    (((1001.0, 999.0, 1000.0, 2.0, 1.0, 8), (4.0, 2.0, None, None, None, 999.0)), (1001.0, 999.0, 1000.0, 2.0, 1.0, 8)),
    (((1001.0, 999.0, 999.5, 2.0, 2.0, 8), (4.0, 2.0, None, None, 5.0, 999.0)), (1001.0, 999.0, 999.5, 2.0, 2.0, 8)),
    (((1001.0, 999.0, 999.5, 2.0, 2.0, 8), (4.0, 2.0, None, None, 5.1, 999.0)), (1005.1, 999.0, 1005.1, 2.0, 2.0, 8)),
    (((1001.0, 999.0, 999.0, 2.0, 2.0, 8), (4.0, 2.0, None, None, 5.0, 999.0)), (1005.0, 999.0, 1005.0, 4.0, 2.0, 8)),
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (None, None, None, None, 1.0, 999.0)), (1001.0, 999.0, 1001.0, 2.0, 2.0, 8)),
]

# pace before, pace after, whether the update sets the lane's own pace → its reason is why the lane rests or is slow
TAKES_WHY = [
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (1001.0, 999.0, 0.0, 2.0, 2.0, 8), False), False),
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (1030.0, 999.0, 1030.0, 2.0, 2.0, 8), False), True),
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (1030.0, 999.0, 1030.0, 4.0, 4.0, 8), True), True),
    (((1030.0, 999.0, 1030.0, 2.0, 2.0, 8), (1030.0, 999.0, 1030.0, 2.0, 2.0, 8), False), False),
    (((1030.0, 999.0, 1030.0, 2.0, 2.0, 8), (1031.0, 999.0, 1031.0, 2.0, 2.0, 8), False), True),
    (((1001.0, 999.0, 990.0, 2.0, 2.0, 8), (1003.0, 999.0, 1000.0, 4.0, 2.0, 8), False), True),  # slower
    (((1001.0, 999.0, 0.0, 4.0, 2.0, 8), (1001.0, 999.0, 0.0, 2.0, 2.0, 8), False), False),  # faster
    (((1030.0, 999.0, 1030.0, 2.0, 2.0, 8), (1030.0, 999.0, 1030.0, 4.0, 2.0, 8), False), False),  # slower, but rests
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (1003.0, 999.0, 0.0, 4.0, 4.0, 8), True), False),
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (1001.0, 999.0, 0.0, 1.5, 2.0, 8), False), True),  # faster than its own pace
    (((1001.0, 999.0, 0.0, 1.5, 2.0, 8), (1001.0, 999.0, 0.0, 1.5, 2.0, 8), False), False),  # as before
    (((1001.0, 999.0, 0.0, 1.5, 2.0, 8), (1001.0, 999.0, 0.0, 2.0, 2.0, 8), False), True),  # slower: its own pace
    (((1030.0, 999.0, 1030.0, 2.0, 2.0, 8), (1030.0, 999.0, 1030.0, 1.5, 2.0, 8), False), False),  # but it rests
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (1000.0, 999.0, 0.0, 1.0, 2.0, 8), True), False),
]

# pace → the reason still holds
SHOWS_WHY = [
    ((1001.0, 999.0, 0.0, 2.0, 2.0, 8), False),
    ((1001.0, 999.0, 1000.0, 2.0, 2.0, 8), False),
    ((1001.0, 999.0, 1000.1, 2.0, 2.0, 8), True),
    ((1001.0, 999.0, 0.0, 2.1, 2.0, 8), True),
    ((1001.0, 999.0, 0.0, 1.9, 2.0, 8), True),
]

# pace, old interval and cap, new interval and cap of the crawl or the pool → pace
FOLLOW_PACE = [
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (2.0, 8), (2.0, 8)), (1001.0, 999.0, 0.0, 2.0, 2.0, 8)),
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (2.0, 8), (5.0, 4)), (1004.0, 999.0, 0.0, 5.0, 5.0, 4)),
    (((1001.0, 999.0, 0.0, 2.0, 2.0, 8), (2.0, 8), (0.5, 8)), (1000.0, 999.0, 0.0, 0.5, 0.5, 8)),
    (((1005.0, 999.0, 0.0, 6.0, 2.0, 8), (2.0, 8), (5.0, 8)), (1004.0, 999.0, 0.0, 6.0, 5.0, 8)),  # an adaptive one
    (((1001.0, 999.0, 0.0, 2.0, 3.0, 6), (2.0, 8), (5.0, 4)), (1001.0, 999.0, 0.0, 2.0, 3.0, 6)),  # its own pace
    (((1030.0, 999.0, 1030.0, 2.0, 2.0, 8), (2.0, 8), (0.5, 8)), (1030.0, 999.0, 1030.0, 0.5, 0.5, 8)),
    (((900.0, 890.0, 0.0, 2.0, 2.0, 8), (2.0, 8), (5.0, 8)), (900.0, 890.0, 0.0, 5.0, 5.0, 8)),  # it is due already
]

# tasks at most, interval, next start, horizon → tasks
STARTS_WITHIN = [
    ((5, 0.0, 900.0, 0.0), 5),
    ((5, 1.0, 900.0, 0.0), 1),
    ((5, 1.0, 900.0, 2.0), 3),
    ((5, 1.0, 900.0, 2.5), 3),
    ((5, 1.0, 1001.5, 2.5), 2),
    ((2, 1.0, 900.0, 60.0), 2),
    ((1, 60.0, 900.0, 1.0), 1),
    ((0, 0.0, 900.0, 1.0), 0),
]

# times at which something can be lent → seconds until a worker asks again
ASK_AGAIN = [
    ((), 1.0),
    ((2000.0,), 1.0),
    ((1000.5, 2000.0), 0.5),
    ((1000.5, 999.0), 0.01),
    ((1000.0,), 0.01),
]

# last token, now → next token
NEXT_TOKEN = [
    ((0, 1000.0), 1_024_000_000),
    ((0, 1000.0005), 1_024_000_000),
    ((0, 1000.0015), 1_024_001_024),
    ((1_024_000_000, 1000.0), 1_024_000_001),
    ((1_024_000_000, 10.0), 1_024_000_001),  # the clock went back
    ((5, 1_700_000_000.25), 1_740_800_000_256_000),
]

# attempts so far with this one, free retries so far, attempts at most, whether this retry is free
# → attempts and free retries, or None when the task is dead
ATTEMPTS_AFTER_RETRY = [
    ((1, 0, 3, False), (1, 0)),
    ((2, 4, 3, False), (2, 4)),
    ((3, 0, 3, False), None),
    ((4, 0, 3, False), None),
    ((3, 0, 3, True), (2, 1)),
    ((1, 4, 3, True), (0, 5)),
    ((1, 65535, 3, True), (0, 65535)),
]

# losses in a row → whether the task is lent alone
IS_SUSPECT = [
    (0, False),
    (1, False),
    (2, True),
    (7, True),
]

# attempts so far with this one, losses before this one, attempts at most, whether the task is blamed (None: not known)
# → attempts and losses, or None when the task is dead
TRIES_AFTER_LOSS = [
    # Lent in company: free of charge, even with the last attempt.
    ((1, 0, 3, None), (0, 1)),
    ((1, 0, 3, False), (0, 1)),
    ((1, 1, 3, None), (0, 2)),
    ((1, 0, 1, None), (0, 1)),
    ((3, 1, 3, False), (2, 2)),
    ((1, 0, 0, None), (0, 1)),
    # Its handler ran: a suspect at once.
    ((1, 0, 3, True), (0, 2)),
    ((1, 1, 1, True), (0, 2)),
    # Lent alone: the attempt is used up.
    ((1, 2, 3, None), (1, 3)),
    ((2, 3, 3, True), (2, 4)),
    ((3, 4, 3, None), None),
    ((3, 2, 3, True), None),
    ((1, 2, 1, True), None),
    ((1, 65535, 3, None), (1, 65535)),
    # Lent alone, and another page is blamed: it had not begun.
    ((3, 4, 3, False), (2, 4)),
    ((1, 2, 1, False), (0, 2)),
]

# reason of a dead letter → its losses when it is queued again
LOSSES_OF_REQUEUED = [
    ("worker lost", 2),
    ("worker lost: SIGSEGV", 2),
    ("timeout", 0),
    ("error: worker lost", 0),
    ("", 0),
]

# cause of a worker's end → reason
LOST_REASONS = [
    ("", "worker lost"),
    ("SIGSEGV", "worker lost: SIGSEGV"),
    ("silent for 45 s", "worker lost: silent for 45 s"),
]

# worker, whether it is known to have exited → detail
LOST_DETAILS = [
    (("host:7", True), "the worker host:7 died while it had only this page"),
    (("host:7", False), "its lease ended without a word from the worker host:7, which had only this page"),
]

# reason → the outcome under which it is counted
OUTCOMES = [
    ("timeout", "timeout"),
    ("http: 404", "http"),
    ("error: a: b", "error"),
    ("", ""),
]

# cost so far, budget of cost → whether it is spent
HAS_SPENT = [
    ((0.0, 0.0), False),
    ((5.0, 0.0), False),
    ((4.5, 5.0), False),
    ((5.0, 5.0), True),
    ((5.5, 5.0), True),
]

# when the current generation began, dedup_ttl → generations that should have begun since, and when the last of them did
GENERATIONS_DUE = [
    ((1000.0, 100.0), (0, 1000.0)),
    ((950.5, 100.0), (0, 950.5)),
    ((950.0, 100.0), (1, 1000.0)),
    ((900.5, 100.0), (1, 950.5)),
    ((840.0, 100.0), (3, 990.0)),
    ((1010.0, 100.0), (0, 1010.0)),  # the clock went back
    ((990.0, 3.0), (6, 999.0)),
]

# current generation → the oldest one whose keys are known
OLDEST_KNOWN = [
    (0, -2),
    (2, 0),
    (7, 5),
]

# room of each lane, tasks to share out → tasks of each lane
SHARES = [
    (((), 5), ()),
    (((5, 5), 0), (0, 0)),
    (((5, 5), 4), (2, 2)),
    (((5, 5), 5), (3, 2)),
    (((1, 5, 5), 9), (1, 4, 4)),
    (((1, 1), 9), (1, 1)),
    (((0, 3), 2), (0, 2)),
    (((5, 5, 5), 2), (1, 1, 0)),
]

# clock, last time noted, shift, expected by the caller (None: it has not asked before), how much later it may be
# and the shift that it knows → time of the crawl, shift
RECKON = [
    ((1000.0, 0.0, 0.0, None, None, None), (1000.0, 0.0)),
    ((1000.0, 999.5, 0.0, 1000.0, 0.0, 0.0), (1000.0, 0.0)),
    ((1000.0, 999.5, 50.0, None, None, None), (1050.0, 50.0)),
    ((1000.0, 999.5, 0.0, 999.75, 0.0, 0.0), (1000.0, 0.0)),  # a request that took a quarter of a second
    ((1000.0, 999.5, 0.0, 1030.0, 0.0, 0.0), (1000.0, 0.0)),  # time stood still for others: they do not make it jump
    ((4600.0, 999.5, 0.0, 1000.0, 0.0, 0.0), (1000.0, -3600.0)),  # stepped forward
    ((4600.0, 999.5, 50.0, 1000.0, 0.0, 50.0), (1000.0, -3600.0)),
    ((4600.0, 1000.5, 0.0, 1000.0, 0.0, 0.0), (1000.5, -3599.5)),  # others asked since: time does not go back
    ((4600.0, 999.5, 0.0, None, None, None), (4600.0, 0.0)),
    ((-2600.0, 999.5, 0.0, None, None, None), (999.5, 3599.5)),  # stepped back
    ((-2600.0, 999.5, 0.0, 1000.0, 0.0, 0.0), (1000.0, 3600.0)),
    ((-2600.0, 999.5, 0.0, 990.0, 0.0, 0.0), (999.5, 3599.5)),
    ((-2600.0, 999.5, 0.0, 2000.0, 0.0, 0.0), (1000.5, 3600.5)),  # what was noted is a second old at most
    ((1000.0, 999.5, 0.0, 999.0, 0.75, 0.0), (1000.0, 0.0)),  # its last call took as long
    ((4600.0, 999.5, 0.0, 999.75, 3.0, 0.0), (999.75, -3600.25)),  # the earliest time counts, not the latest
    ((-2600.0, 999.5, 0.0, 999.75, 3.0, 0.0), (999.75, 3599.75)),
    (
        (4600.0, 999.5, 0.0, 1003.0, 0.0, 3.0),
        (999.5, -3600.5),
    ),  # time stood still for others: only what was noted counts
    ((-2600.0, 999.5, 0.0, 1003.0, 0.0, 3.0), (999.5, 3599.5)),
    ((1000.0, 999.5, 0.0, 1003.0, 0.0, 3.0), (1000.0, 0.0)),
]

# time, last time noted → whether it is noted
IS_NOTED = [
    ((1000.0, 0.0), True),
    ((1000.0, 999.0), True),
    ((1000.0, 999.5), False),
    ((1000.0, 1000.0), False),
]

# now, the latest time that was noted → the seconds in which workers were there
RAN_SINCE = [
    ((1000.0, 999.0), 1.0),
    ((1000.0, 940.0), 60.0),
    ((1000.0, 939.5), 0.0),  # nobody worked meanwhile
    ((1000.0, 0.0), 0.0),  # nothing was noted yet
    ((1000.0, 1001.0), 0.0),
]

# time, last time noted, expected by the caller, seconds of a lease → whether the frontier was away
WAS_AWAY = [
    ((1000.0, 999.0, 1000.0, 60.0), False),
    ((1000.0, 969.0, 1000.0, 60.0), False),
    ((1000.0, 968.5, 1000.0, 60.0), True),
    ((1000.0, 968.5, None, 60.0), False),  # the caller is new
    ((1000.0, 998.2, 1000.0, 2.0), False),  # a short lease: the time is noted about once a second
    ((1000.0, 0.0, 1000.0, 60.0), False),  # nothing was noted yet
]

# pace, requests in flight → the latest time at which its next start can lie
POSSIBLE_START = [
    (((5000.0, 999.0, 0.0, 2.0, 2.0, 8), 0), 1062.0),
    (((5000.0, 999.0, 0.0, 2.0, 2.0, 8), 4), 1070.0),
    (((5000.0, 999.0, 1500.0, 2.0, 10.0, 8), 1), 1580.0),
    (((5000.0, 999.0, 900.0, 0.0, 0.0, 8), 3), 1060.0),
]

# pace, requests in flight → pace
BRING_BACK = [
    (((1002.0, 1000.0, 0.0, 2.0, 2.0, 8), 1), (1002.0, 1000.0, 0.0, 2.0, 2.0, 8)),
    (((1062.0, 1000.0, 0.0, 2.0, 2.0, 8), 0), (1062.0, 1000.0, 0.0, 2.0, 2.0, 8)),
    (((4600.0, 4598.0, 0.0, 2.0, 2.0, 8), 1), (1002.0, 1000.0, 0.0, 2.0, 2.0, 8)),
    (((4600.0, 990.0, 0.0, 2.0, 2.0, 8), 0), (1000.0, 990.0, 0.0, 2.0, 2.0, 8)),
    (((4600.0, 4598.0, 1500.0, 2.0, 2.0, 8), 0), (1500.0, 1000.0, 1500.0, 2.0, 2.0, 8)),
    (((1520.0, 999.0, 1520.0, 2.0, 2.0, 8), 0), (1520.0, 999.0, 1520.0, 2.0, 2.0, 8)),
]

# The lane of another crawl: last start, blocked until, interval, base interval, cap, in flight, opener, turn,
# until when it wants a start slot and its limits count. QUIET does not matter.
QUIET = (900.0, 0.0, 5.0, 4.0, 2, 0, 0, 7.0, 0.0, 0.0)
BUSY = (999.0, 0.0, 3.0, 2.0, 4, 1, 0, 5.0, 0.0, 0.0)
WANTING = (990.0, 0.0, 0.5, 0.5, 0, 0, 0, 4.0, 1001.0, 1060.0)
RESTING = (900.0, 1020.0, 5.0, 5.0, 2, 0, 0, 3.0, 0.0, 0.0)
OPENING = (1000.0, 0.0, 1.0, 1.0, 8, 1, 77, 6.0, 1000.0, 1000.0)

# a lane, the state of its crawl → the lane as others see it
LANE_IN_STATE = [
    ((WANTING, "running"), WANTING),
    ((WANTING, "paused"), WANTING),
    ((WANTING, "finished"), (*WANTING[:8], 0.0, 0.0)),
    ((OPENING, "cancelled"), (*OPENING[:8], 0.0, 0.0)),
    ((OPENING, "stopped"), (*OPENING[:8], 0.0, 0.0)),
    ((OPENING, "deleting"), (*OPENING[:5], 0, 0, 6.0, 0.0, 0.0)),
]

# name, whether its crawl shares nothing → how a new lane stands to those of other crawls
FIRST_SHARING = [
    (("a.test", False), 0),
    (("a.test", True), -1),
    (("a.test stage browser", False), -1),
    (("a.test via ring", False), 0),
]

# a time of another crawl, the shift of that crawl, our shift → the time in ours
IN_TIME_OF = [
    ((1000.0, 0.0, 0.0), 1000.0),
    ((1000.0, 5.0, 5.0), 1000.0),
    ((1000.0, 50.0, 0.0), 950.0),
    ((1000.0, -3600.0, 20.0), 4620.0),
]

# interval, base interval, cap, lanes of other crawls → the limits that are left: interval, base interval, cap, requests
# in flight, not before, whether one is opening, least turn, first turn
LIMITS_OF = [
    ((1.0, 1.0, 8, []), (1.0, 1.0, 8, 0, 0.0, False, None, None)),
    ((1.0, 1.0, 8, [QUIET]), (1.0, 1.0, 8, 0, 901.0, False, None, None)),
    ((1.0, 1.0, 8, [BUSY]), (3.0, 2.0, 4, 1, 1002.0, False, None, 5.0)),
    ((9.0, 1.0, 2, [BUSY]), (9.0, 2.0, 2, 1, 1008.0, False, None, 5.0)),
    ((1.0, 1.0, 8, [WANTING]), (1.0, 1.0, 8, 0, 991.0, False, 4.0, 4.0)),  # a cap of zero is its own
    ((1.0, 1.0, 8, [BUSY, WANTING, RESTING]), (3.0, 2.0, 4, 1, 1020.0, False, 4.0, 4.0)),
    ((1.0, 1.0, 8, [OPENING, BUSY]), (3.0, 2.0, 4, 2, 1003.0, True, None, 6.0)),
    ((1.0, 1.0, 8, [(4600.0, *QUIET[1:])]), (1.0, 1.0, 8, 0, 0.0, False, None, None)),  # its clock was wrong
    ((1.0, 1.0, 8, [BUSY], 1000.5), (3.0, 2.0, 4, 1, 1003.5, False, None, 5.0)),
    ((1.0, 1.0, 8, [(1062.0, 0.0, 1.0, 1.0, 8, 1, 0, 1.0, 0.0, 0.0)]), (1.0, 1.0, 8, 1, 1063.0, False, None, 1.0)),
]

# the lane of another crawl, interval of the lane that looks → whether it has to look
MATTERS = [
    ((QUIET, 1.0), False),
    ((QUIET, 100.0), False),
    ((QUIET, 101.0), True),
    ((BUSY, 1.0), True),
    ((WANTING, 1.0), True),
    ((RESTING, 1.0), True),
    ((OPENING, 1.0), True),
    (((4600.0, *QUIET[1:]), 1.0), False),
]

# turn, wants until, first turn of the others → turn
TURN_AT_RETURN = [
    ((3.0, 0.0, None), 3.0),
    ((3.0, 0.0, 5.0), 5.0),
    ((6.0, 0.0, 5.0), 6.0),
    ((3.0, 1000.5, 5.0), 3.0),
    ((3.0, 1000.0, 5.0), 5.0),
]

# turn, weight, then of the limits: interval, cap, least turn; horizon → turn
TURN_OWED = [
    ((900.0, 1.0, (1.0, 8, None), 2.0), 900.0),
    ((900.0, 1.0, (1.0, 8, 3.0), 2.0), 6.0),
    ((900.0, 1.0, (1.0, 8, 3.0), 0.0), 5.0),
    ((900.0, 0.5, (0.0, 8, 3.0), 0.0), 13.0),
    ((900.0, 4.0, (0.0, 8, 3.0), 0.0), 5.25),
    ((4.5, 1.0, (1.0, 8, 3.0), 0.0), 4.5),
    ((2.0, 1.0, (1.0, 8, 3.0), 0.0), 2.0),
]

# turn, weight, then of the limits: interval, cap, least turn; horizon, most → starts
TURNS_LEFT = [
    ((3.0, 1.0, (1.0, 8, None), 2.0, 9), 9),
    ((3.0, 1.0, (1.0, 8, 3.0), 2.0, 9), 2),
    ((3.0, 1.0, (1.0, 8, 3.0), 0.0, 9), 1),
    ((4.0, 1.0, (1.0, 8, 3.0), 0.0, 9), 0),
    ((3.0, 2.0, (1.0, 8, 3.0), 0.0, 9), 1),
    ((3.0, 8.0, (0.5, 8, 3.0), 2.0, 9), 4),
    ((3.0, 0.5, (0.0, 4, 3.0), 2.0, 9), 2),  # without an interval: as many as the cap allows
    ((3.0, 1.0, (0.0, 4, 3.0), 2.0, 3), 3),
]

# tasks waiting, due, whether the call lent all that was asked for → wants until, heeded until
WANTS = [
    ((0, 5000.0, False), (0.0, 5060.0)),
    ((2, 990.0, False), (1002.0, 1060.0)),
    ((2, 1010.0, False), (1012.0, 1070.0)),
    ((2, 1010.0, True), (0.0, 1070.0)),
]
