from __future__ import annotations

from shoal.exits.offered import MachineOffer, is_offered, machine_of, offer_counts, offers_of
from shoal.model import ExitStatus, Heartbeat, Pool

OWN = Pool(name="res", exits=("res/10.0.0.1:80", "res/u@10.0.0.2:80"))
SHOP = Pool(name="shop", exits=("shop/anna@shop.example",), written_in="accounts")


def status(name: str, pool: str) -> ExitStatus:
    return ExitStatus(exit=name, lane=f"a.test via {pool}")


def beat(worker: str, **offers: int) -> Heartbeat:
    given = {f"region:{name}": count for name, count in offers.items()}
    offered = {f"{name}@fra-1": count for name, count in given.items()}
    return Heartbeat(worker=worker, crawl="c", host="h", pid=1, version="1", slots=1, offers=offered)


def test_an_offered_exit_is_its_machines_and_any_other_everybodys() -> None:
    pools = [OWN, SHOP]
    assert machine_of(status("region:eu/127.0.0.2@fra-1", "region:eu"), pools) == "fra-1"
    assert machine_of(status("res/10.0.0.9:80@fra-1", "res"), pools) == "fra-1"
    assert machine_of(status("res/u@10.0.0.2:80", "res"), pools) == ""
    assert machine_of(status("shop/anna@shop.example", "shop"), pools) == ""
    assert machine_of(status("shop/bert@shop.example", "shop"), pools) == ""
    assert machine_of(status("gone/bert@shop.example", "gone"), pools) == ""


def test_what_workers_tell_is_summed_by_machine() -> None:
    offers = [Pool(name="region:eu", exits=("region:eu/a@fra-1", "region:eu/b@fra-1")), Pool(name="res", exits=())]
    assert offer_counts(offers) == {"region:eu@fra-1": 2}
    assert offers_of([beat("w1", eu=2), beat("w2", eu=2, us=1), beat("w3")]) == [
        MachineOffer("fra-1", "region:eu", 2, 2),
        MachineOffer("fra-1", "region:us", 1, 1),
    ]


def test_an_exit_is_offered_while_a_worker_of_its_machine_tells_so() -> None:
    one = status("region:eu/127.0.0.2@fra-1", "region:eu")
    assert is_offered(one, "fra-1", {"region:eu@fra-1"})
    assert not is_offered(one, "fra-1", {"region:eu@fra-2", "region:us@fra-1"})
    assert is_offered(status("res/10.0.0.1:80", "res"), "", set())
