"""Speaks to a Ray cluster for the service: a process of its own, because Ray ends the processes that lose its head.

Requests and answers are one JSON object a line on standard input and output: `{"verb": …, …}` to `{"ok": …}` or
`{"error": …}`. Every verb may be asked again. Actors are detached and named `<attempt>/<number>`, so that the next
agent finds them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

NAMESPACE = "finery"
NODE_LABEL = "ray.io/node-id"
START_SECONDS = 120.0
ASK_SECONDS = 5.0


class Agent:
    """The verbs."""

    def __init__(self, address: str) -> None:
        import ray

        self.ray = ray
        ray.init(
            address=address or "auto",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
        )

    def nodes(self) -> list[dict[str, Any]]:
        """Every node that the head knows, alive or not."""
        return [
            {
                "id": node["NodeID"],
                "host": node["NodeManagerHostname"],
                "name": node.get("NodeName", ""),
                "alive": node["Alive"],
                "cpus": int(node["Resources"].get("CPU", 0)),
                "gpus": int(node["Resources"].get("GPU", 0)),
                "memory": int(node["Resources"].get("memory", 0)),
                "kind": next(
                    (key.partition(":")[2] for key in node["Resources"] if key.startswith("accelerator_type:")), ""
                ),
            }
            for node in self.ray.nodes()
        ]

    def start(self, attempt_id: str, parts: list[dict[str, Any]], lease: float) -> list[dict[str, Any]]:
        """Reserve a bundle on each part's node, all at once, and start the parts; what was started before is found
        again."""
        keepers = [self._keeper(attempt_id, number) for number in range(len(parts))]
        if not all(keepers):
            self.kill(attempt_id, len(parts))
            keepers = self._place(attempt_id, parts, lease)
        address = self.ray.get(keepers[0].address.remote(), timeout=START_SECONDS)
        for part in parts:
            part["environment"]["FINERY_ADDRESS"] = address
        answers = [keeper.start.remote(part) for keeper, part in zip(keepers, parts, strict=True)]
        return list(self.ray.get(answers, timeout=START_SECONDS))

    def _place(self, attempt_id: str, parts: list[dict[str, Any]], lease: float) -> list[Any]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from service.executors.ray_keeper import PartActor

        bundles = [{"CPU": part["cpus"], **({"GPU": part["gpus"]} if part["gpus"] else {})} for part in parts]
        labels = [{NODE_LABEL: part["node"]} for part in parts]
        group = self.ray.util.placement_group(
            bundles, strategy="PACK", name=attempt_id, lifetime="detached", bundle_label_selector=labels
        )
        if not group.wait(START_SECONDS):
            self.ray.util.remove_placement_group(group)
            raise TimeoutError(
                f"the nodes {', '.join(part['node'][:8] for part in parts)} do not have what the attempt was promised"
            )
        actor = self.ray.remote(PartActor)
        return [
            actor.options(
                name=f"{attempt_id}/{number}",
                namespace=NAMESPACE,
                lifetime="detached",
                max_restarts=0,
                max_concurrency=4,
                num_cpus=part["cpus"],
                num_gpus=part["gpus"],
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=number
                ),
            ).remote(lease)
            for number, part in enumerate(parts)
        ]

    def beat(self, attempt_id: str, count: int) -> list[str]:
        """Of each part: `running`, `ended`, `gone` (its actor is dead), or `unknown` (it did not answer in time)."""
        return [self._beat(attempt_id, number) for number in range(count)]

    def _beat(self, attempt_id: str, number: int) -> str:
        from ray.exceptions import GetTimeoutError, RayActorError

        keeper = self._keeper(attempt_id, number)
        if keeper is None:
            return "gone"
        try:
            return "running" if self.ray.get(keeper.beat.remote(), timeout=ASK_SECONDS) else "ended"
        except GetTimeoutError:
            return "unknown"
        except RayActorError:
            return "gone"

    def stop(self, attempt_id: str, count: int, grace: float) -> None:
        """SIGTERM to every part."""
        for number in range(count):
            keeper = self._keeper(attempt_id, number)
            if keeper is not None:
                keeper.stop.remote(grace)

    def kill(self, attempt_id: str, count: int) -> None:
        """End the actors, and with them what they keep; give the bundles back."""
        for number in range(count):
            keeper = self._keeper(attempt_id, number)
            if keeper is not None:
                self.ray.kill(keeper)
        try:
            self.ray.util.remove_placement_group(self.ray.util.get_placement_group(attempt_id))
        except ValueError:  # there is none of this name
            return

    def _keeper(self, attempt_id: str, number: int) -> Any:
        try:
            return self.ray.get_actor(f"{attempt_id}/{number}", namespace=NAMESPACE)
        except ValueError:
            return None


def answer(agent: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """One request's answer."""
    fields = dict(request)
    try:
        return {"ok": getattr(agent, fields.pop("verb"))(**fields)}
    except Exception as error:
        cause = getattr(error, "cause", None) or error
        return {"error": " ".join(str(cause).split())[:500] or type(error).__name__}


def main(words: list[str]) -> int:
    """Serve requests until standard input ends. Ray's own noise goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        agent = Agent(words[0] if words else "")
    except Exception as error:
        answers.write(json.dumps({"error": " ".join(str(error).split())[:500]}) + "\n")
        return 1
    answers.write(json.dumps({"ok": "ready"}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(answer(agent, json.loads(line))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
