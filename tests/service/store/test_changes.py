import threading
import time

from service.store.changes import BUCKETS, Changes, job_topic


def test_a_change_between_the_look_and_the_wait_is_not_missed():
    changes = Changes()
    seen = changes.version("jobs")
    changes.touch({"jobs"})
    begun = time.monotonic()
    assert changes.wait("jobs", seen, 5) != seen
    assert time.monotonic() - begun < 1


def test_a_waiter_wakes_for_its_topic_and_not_for_others():
    changes = Changes()
    woken = []
    waiter = threading.Thread(target=lambda: woken.append(changes.wait("a", changes.version("a"), 10)))
    waiter.start()
    others = [topic for topic in ("b", "c", "d") if hash(topic) % BUCKETS != hash("a") % BUCKETS]
    time.sleep(0.1)
    changes.touch(others)
    waiter.join(0.2)
    assert waiter.is_alive()
    changes.touch({"a"})
    waiter.join(5)
    assert len(woken) == 1


def test_closing_wakes_everybody_and_later_waits_return_at_once():
    changes = Changes()
    waiters = [threading.Thread(target=changes.wait, args=(job_topic(str(number)), 0, 30)) for number in range(3)]
    for waiter in waiters:
        waiter.start()
    time.sleep(0.05)
    changes.close()
    for waiter in waiters:
        waiter.join(5)
    assert not any(waiter.is_alive() for waiter in waiters)
    begun = time.monotonic()
    changes.wait("x", changes.version("x"), 30)
    assert time.monotonic() - begun < 1


def test_a_callback_whose_loop_is_closed_does_not_keep_others_from_hearing():
    changes, heard = Changes(), []

    def closed():
        raise RuntimeError("Event loop is closed")

    changes.subscribe("a", closed)
    changes.subscribe("a", lambda: heard.append(1))
    changes.touch({"a"})
    changes.touch_all()
    assert heard == [1, 1]


def test_the_listening_thread_starts_with_the_first_listener_only_and_once():
    started = []
    changes = Changes(lambda of, stop: (started.append(of), stop.wait(5)))
    changes.touch({"a"})
    assert started == []
    changes.version("a")
    changes.version("b")
    changes.close()
    assert started == [changes]
