"""The worker that tutorials on distributed scraping show: a list in Redis, BRPOP, requests, BeautifulSoup.

    python brpop_worker.py START_URL REDIS_URL WORKERS

URLs wait in the list `queue`, all that were ever queued are in the set `seen`, items go to the list `items`.
"""

import json
import multiprocessing
import sys
from urllib.parse import urljoin

import redis
import requests
from bs4 import BeautifulSoup

IDLE_SECONDS = 3


def add(database, url):
    if database.sadd("seen", url):
        database.lpush("queue", url)


def work(redis_url):
    database = redis.Redis.from_url(redis_url, decode_responses=True)
    session = requests.Session()
    while True:
        job = database.brpop("queue", timeout=IDLE_SECONDS)
        if job is None:
            return
        url = job[1]
        try:
            response = session.get(url, timeout=30)
            response.raise_for_status()
        except requests.RequestException as error:
            print(f"{url}: {error}", file=sys.stderr)
            continue
        soup = BeautifulSoup(response.text, "html.parser")
        links = [link["href"] for link in soup.select("a[href]")]
        database.rpush("items", json.dumps({"url": url, "title": soup.title.text, "links": len(links)}))
        for link in links:
            add(database, urljoin(url, link))


def main():
    start, redis_url, workers = sys.argv[1:]
    add(redis.Redis.from_url(redis_url), start)
    processes = [multiprocessing.Process(target=work, args=(redis_url,)) for _ in range(int(workers))]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
