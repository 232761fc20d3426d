#!/bin/sh
# What the image starts: `worker` and `head` are the two ends of a Ray cluster, every other word is a verb of finery.
set -eu
token() {
    : "${RAY_AUTH_TOKEN:?set RAY_AUTH_TOKEN to the token of the cluster: without one whoever reaches its ports runs code}"
}
launchers() {  # those that were handed to the first process of the container, as daemons are
    for each in /proc/[0-9]*; do
        if grep -qsx "PPid:[[:space:]]*$PPID" "$each/status" && grep -qs "executors.launcher import" "$each/cmdline"; then
            echo "${each#/proc/}"
        fi
    done
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
    # The server leaves its attempts running, which the end of a container would kill. So a stop goes to the server and then
    # to the launcher of each attempt: it has the attempt save a checkpoint, and the next server queues the job again.
    finery "$@" &
    server=$! stopped=
    trap 'stopped=yes; kill -TERM "$server" 2> /dev/null || true' TERM INT
    while :; do
        code=0
        wait "$server" || code=$?
        kill -0 "$server" 2> /dev/null || break  # a signal ends `wait`, not the server
    done
    asked=
    while [ "$stopped" ] && launchers=$(launchers) && [ "$launchers" ]; do
        [ "$asked" ] || kill -TERM $launchers || true
        asked=yes
        sleep 1
    done
    exit "$code"
    ;;
*)
    exec finery "$@"
    ;;
esac
