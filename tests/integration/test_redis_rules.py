"""The rules that the Lua scripts restate, driven over the cases of the Python functions: both give the same answers."""

from __future__ import annotations

import importlib.util
import inspect
import math
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from shoal.frontier.redis.scripts import LuaFolder
from shoal.model import Pool
from shoal.testing.servers.redis_server import RedisServer

CASES = Path(__file__).parents[1] / "contract" / "rule_cases.py"
RULES = ("crawl_time", "exits", "hosts", "keys", "lanes", "tasks")
TWIN = re.compile(r"^-- twin: rules/(\w+)\.py (\w+)\n(?:local )?function (?:\w+\.)?(\w+)\(", re.MULTILINE)
FOLDER = LuaFolder()
NIL = "nil"  # stands for None in the middle of an answer
# What a driver gets: the values of a case as `given`, and tables that Python has as classes.
GIVEN = """
local NIL = 'nil'
local given = cmsgpack.unpack(ARGV[2])
local function pool_of(limits)
  local pool = cmsgpack.unpack(ARGV[3])
  for name, value in pairs(limits) do pool[name] = value end
  return pool
end
local function row_of(values)
  local strikes, struck_lane, parked_until, parkings, trial = unpack(values)
  return {strikes = strikes, struck_lane = struck_lane, parked_until = parked_until, parkings = parkings, trial = trial}
end
local function lane_of(values)
  local next_start, last_start, blocked_until, interval, base_interval, cap = unpack(values)
  return {
    next_start = next_start, last_start = last_start, blocked_until = blocked_until, interval = interval,
    base_interval = base_interval, cap = cap,
  }
end
local function values_of(table_, ...)
  local values = {}
  for i, name in ipairs({...}) do values[i] = table_[name] end
  return values
end
local function roster_of(values, size)
  local marks, flights, next_starts, next_index = unpack(values)
  local roster = {size = size, next_index = next_index, marks = '', flights = {}, next_starts = {}}
  for _, mark in ipairs(marks) do roster.marks = roster.marks .. string.char(mark) end
  for _, pair in ipairs(flights) do roster.flights[pair[1]] = pair[2] end
  for _, pair in ipairs(next_starts) do roster.next_starts[pair[1]] = pair[2] end
  return roster
end
local OTHER = {
  'last_start', 'blocked_until', 'interval', 'base_interval', 'cap', 'in_flight', 'opener', 'turn', 'wants_until',
  'heeded_until',
}
local LIMITS = {'interval', 'base_interval', 'cap', 'in_flight', 'not_before', 'is_opening', 'least_turn', 'first_turn'}
local function other_of(values)
  local other = {}
  for i, name in ipairs(OTHER) do other[name] = values[i] end
  return other
end
local function others_of(list)
  local others = {}
  for i, values in ipairs(list) do others[i] = other_of(values) end
  return others
end
local function limits_as_values(limits)
  local values = {}
  for i, name in ipairs(LIMITS) do values[i] = limits[name] == nil and NIL or limits[name] end
  return unpack(values)
end
local function never_is_nil(time) return time < math.huge and time or nil end
local PARKING = {'strikes', 'struck_lane', 'parked_until', 'parkings', 'trial'}
local PACE = {'next_start', 'last_start', 'blocked_until', 'interval', 'base_interval', 'cap'}
"""
ANSWER = "return cmsgpack.pack({answer()})\n"

# By the list of cases: the parts that it needs, and how the function is called with a case.
DRIVERS = {
    "REST_SECONDS": ("exit_rules", "return exit_rules.rest_seconds(pool_of({quarantine = a, max_quarantine = b}), c)"),
    "QUARANTINE_AFTER": (
        "exit_rules",
        "return exit_rules.quarantine_after(c, d, pool_of({quarantine = a, max_quarantine = b}))",
    ),
    "PARKING_AFTER": (
        "exit_rules",
        "local row = row_of(e)"
        " exit_rules.parking_after(row, pool_of({quarantine = a, max_quarantine = b}), c, d)"
        " return unpack(values_of(row, unpack(PARKING)))",
    ),
    "PARKING_ON_TRIAL": (
        "exit_rules",
        "local row = row_of(c) exit_rules.parking_on_trial(row, pool_of({quarantine = a}), b)"
        " return unpack(values_of(row, unpack(PARKING)))",
    ),
    "PUT_OFF": ("exit_rules", "return exit_rules.put_off(a, b, c)"),
    "KEEPS_EXIT": ("exit_rules", "return exit_rules.keeps_exit(pool_of({rotate = a}), b, c)"),
    "STARVED_SINCE": ("exit_rules", "return exit_rules.starved_since(a, b)"),
    "GIVES_UP": (
        "exit_rules",
        "return exit_rules.gives_up(pool_of({exists = a ~= nil, patience = a}), b, c,"
        " function() return d or math.huge end)",
    ),
    "COSTS": (
        "exit_rules",
        "return exit_rules.cost_of(pool_of({exists = a ~= nil, cost = a, cost_per_gb = b}), c, d)",
    ),
    "LOOK_AGAIN_AT": (
        "exit_rules",
        "return never_is_nil(exit_rules.look_again_at(a or math.huge, pool_of({patience = b}), c))",
    ),
    "RECKON": ("clock_rules", "return clock_rules.reckon(a, b, c, d and {time = d, way = e, shift = f})"),
    "IS_NOTED": ("clock_rules", "return clock_rules.is_noted(a, b)"),
    "WAS_AWAY": ("clock_rules", "return clock_rules.was_away(a, b, c, d)"),
    "RAN_SINCE": ("clock_rules", "return clock_rules.ran_since(a, b)"),
    "POSSIBLE_START": (
        "lane_rules",
        "local lane = lane_of(a) lane.in_flight = b return lane_rules.possible_start(lane)",
    ),
    "BRING_BACK": (
        "lane_rules",
        "local lane = lane_of(a) lane.in_flight = b lane_rules.bring_back(lane)"
        " return unpack(values_of(lane, unpack(PACE)))",
    ),
    "DUE_IN_RING": ("free_exits", "return due_in_ring(roster_of(a, b), c)"),
    "NEXT_FREE": ("free_exits", "return never_is_nil(next_free(roster_of(a, c), b or math.huge, d))"),
    "TAKE_SLOT": (
        "lane_rules",
        "local lane = {next_start = b, interval = c, blocked_until = d} lane_rules.take_slot(lane, a)"
        " return lane.last_start, lane.next_start",
    ),
    "RESERVED_START": (
        "lane_rules",
        "return lane_rules.reserved_start({next_start = a, last_start = b, interval = c, blocked_until = d}, e)",
    ),
    "UPDATE_PACE": (
        "lane_rules",
        "local lane = lane_of(a) lane_rules.update_pace(lane, unpack(b, 1, 6))"
        " return unpack(values_of(lane, unpack(PACE)))",
    ),
    "TAKES_WHY": (
        "lane_rules",
        "local before = lane_of(a) return lane_rules.takes_why(lane_of(b), before.blocked_until, before.interval, c)",
    ),
    "SHOWS_WHY": ("lane_rules", "return lane_rules.shows_why(lane_of(given))"),
    "FOLLOW_PACE": (
        "lane_rules",
        "local lane, old_interval, old_cap = lane_of(a), unpack(b)"
        " lane_rules.follow_pace(lane, old_interval, old_cap, unpack(c))"
        " return unpack(values_of(lane, unpack(PACE)))",
    ),
    "STARTS_WITHIN": (
        "lane_rules",
        "return lane_rules.starts_within(a, {interval = b, next_start = c}, d)",
    ),
    "ASK_AGAIN": ("lane_rules", "return lane_rules.ask_again_in(given)"),
    "NEXT_TOKEN": ("task_rules", "return task_rules.next_token(a)"),
    "ATTEMPTS_AFTER_RETRY": ("task_rules", "return task_rules.attempts_after_retry(a, b, c, d)"),
    "IS_SUSPECT": ("task_rules", "return task_rules.is_suspect(given)"),
    "TRIES_AFTER_LOSS": ("task_rules", "return task_rules.tries_after_loss(a, b, c, d)"),
    "LOSSES_OF_REQUEUED": ("task_rules", "return task_rules.losses_of_requeued(given)"),
    "LOST_REASONS": ("task_rules", "return task_rules.lost_reason(given)"),
    "LOST_DETAILS": ("task_rules", "return task_rules.lost_detail(a, b)"),
    "OUTCOMES": ("task_rules", "return task_rules.outcome_of(given)"),
    "HAS_SPENT": ("task_rules", "return task_rules.has_spent(a, b)"),
    "GENERATIONS_DUE": (
        "key_rules",
        "local due = key_rules.generations_due(a, b) return due, key_rules.generation_begin(a, b, due)",
    ),
    "OLDEST_KNOWN": ("key_rules", "return key_rules.oldest_known(given)"),
    "FIRST_SHARING": ("host_rules", "return host_rules.first_sharing(a, b)"),
    "IN_TIME_OF": ("host_rules", "return host_rules.in_time_of(a, b, c)"),
    "LIMITS_OF": ("host_rules", "return limits_as_values(host_rules.limits_of(a, b, c, others_of(d), e or 0))"),
    "LANE_IN_STATE": (
        "host_rules",
        "local other = other_of(a) host_rules.lane_in_state(other, b) return unpack(values_of(other, unpack(OTHER)))",
    ),
    "MATTERS": ("host_rules", "return host_rules.matters(other_of(a), b)"),
    "TURN_AT_RETURN": ("host_rules", "return host_rules.turn_at_return(a, b, c)"),
    "TURN_OWED": (
        "host_rules",
        "return host_rules.turn_owed(a, b, {interval = c[1], cap = c[2], least_turn = c[3]}, d)",
    ),
    "TURNS_LEFT": (
        "host_rules",
        "return host_rules.turns_left(a, b, {interval = c[1], cap = c[2], least_turn = c[3]}, d, e)",
    ),
    "WANTS": ("lane_rules", "return lane_rules.wants(a, b, c)"),
    "SHARES": ("server fairness", "return unpack(share_out(a, b))"),
}


def rule_cases() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rule_cases", CASES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULE = rule_cases()
LISTS = {name: cases for name, cases in vars(MODULE).items() if isinstance(cases, list)}
TWINS = [(part, *twin) for part in FOLDER.names("parts") for twin in TWIN.findall(FOLDER.text("parts", part))]


def answer_of(redis: RedisServer, name: str, given: Any, now: float) -> list[Any]:
    """What the twin in Lua gives."""
    parts, call = DRIVERS[name]
    driver = f"-- needs: {parts}\n{GIVEN}"
    if isinstance(given, tuple):
        driver += "local a, b, c, d, e, f = unpack(given, 1, 6)\n"
    driver += f"local function answer() {call} end\n{ANSWER}"
    text = FOLDER.assembled(driver, name="the test")
    limits = {**msgspec.to_builtins(Pool(name="p", exits=("x",))), "exists": True}
    # A None becomes nil, even in the middle of a tuple: hence the fixed number of values above.
    args = (repr(now), msgspec.msgpack.encode(given), msgspec.msgpack.encode(limits))
    return list(msgspec.msgpack.decode(redis.call("EVAL", text, 1, "prefix:", *args)))


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [(name, given, expected) for name, cases in LISTS.items() for given, expected in cases],
)
def test_lua_gives_the_same_answer_as_python(redis: RedisServer, name: str, given: Any, expected: Any) -> None:
    now = given[1] if name == "NEXT_TOKEN" else MODULE.NOW
    answer = answer_of(redis, name, given, now)
    wanted = list(expected) if isinstance(expected, tuple) else [] if expected is None else [expected]
    wanted = [NIL if value is None else value for value in wanted]
    assert len(answer) == len(wanted)
    for one, other in zip(answer, wanted, strict=True):
        is_same = math.isclose(one, other, rel_tol=1e-15) if isinstance(other, float) else one == other
        assert is_same, f"{answer} is not {wanted}"


def test_every_list_of_cases_is_driven_in_lua_too() -> None:
    assert set(LISTS) == set(DRIVERS)


@pytest.mark.parametrize(("part", "module", "function", "in_lua"), TWINS)
def test_a_twin_names_a_function_that_exists(part: str, module: str, function: str, in_lua: str) -> None:
    assert inspect.isfunction(getattr(import_module(f"shoal.frontier.rules.{module}"), function, None)), part
    assert in_lua == function


def test_every_twin_stands_right_above_its_function() -> None:
    texts = [FOLDER.text(kind, name) for kind in ("parts", "verbs") for name in FOLDER.names(kind)]
    assert sum(text.count("-- twin:") for text in texts) == len(TWINS)
    assert {module for _, module, _, _ in TWINS} == set(RULES)
