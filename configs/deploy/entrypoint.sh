#!/bin/sh
# What the image starts: `worker` and `head` are the two ends of a Ray cluster, every other word is a verb of finery.
set -eu
case "${1:-}" in
worker)
    shift
    # it brings this machine's cores and GPUs to the head; the service on that cluster gives them jobs
    : "${FINERY_RAY_ADDRESS:?set FINERY_RAY_ADDRESS to HOST:PORT of the head that this worker joins}"
    : "${RAY_AUTH_TOKEN:?set RAY_AUTH_TOKEN to the token of the cluster: without one whoever reaches its ports runs code}"
    exec ray start --block --disable-usage-stats --address "$FINERY_RAY_ADDRESS" "$@"
    ;;
head)
    shift
    : "${RAY_AUTH_TOKEN:?set RAY_AUTH_TOKEN to the token of the cluster: without one whoever reaches its ports runs code}"
    exec ray start --block --disable-usage-stats --head --port "${FINERY_RAY_PORT:-6379}" --include-dashboard false "$@"
    ;;
*)
    exec finery "$@"
    ;;
esac
