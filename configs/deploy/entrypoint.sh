#!/bin/sh
# What the image starts: `worker` and `head` are the two ends of a Ray cluster, every other word is a verb of finery.
set -eu
token() {
    : "${RAY_AUTH_TOKEN:?set RAY_AUTH_TOKEN to the token of the cluster: without one whoever reaches its ports runs code}"
}
case "${1:-}" in
worker)
    shift
    # it brings this machine's cores and GPUs to the head; the service on that cluster gives them jobs
    : "${FINERY_RAY_ADDRESS:?set FINERY_RAY_ADDRESS to HOST:PORT of the head that this worker joins}"
    token
    exec ray start --block --disable-usage-stats --address "$FINERY_RAY_ADDRESS" "$@"
    ;;
head)
    shift
    token
    exec ray start --block --disable-usage-stats --head --port "${FINERY_RAY_PORT:-6379}" --include-dashboard false "$@"
    ;;
serve)
    # Ray is spoken to through a node of the cluster on the same machine: this one brings nothing that jobs could run on.
    # It joins again whenever the head was lost. Ray writes the file when the node is there.
    if [ "${FINERY_EXECUTOR:-}" = ray ] && [ -n "${FINERY_RAY_ADDRESS:-}" ]; then
        token
        joined="${RAY_TMPDIR:-/tmp}/ray/ray_current_cluster"
        rm -f "$joined"
        while :; do
            ray start --block --disable-usage-stats --address "$FINERY_RAY_ADDRESS" --num-cpus 0 --num-gpus 0 || true
            sleep 3
        done >&2 &
        until [ -s "$joined" ]; do sleep 1; done
    fi
    exec finery "$@"
    ;;
*)
    exec finery "$@"
    ;;
esac
