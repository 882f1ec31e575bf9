#!/usr/bin/env bash
# A Docker engine for tests, where there is none and no registry either.
#
#   engine.sh up FOLDER        print what to export, to reach an engine
#   engine.sh base FOLDER TAG  import a base image with Python, made of Debian packages
#   engine.sh down FOLDER      stop the engine that `up` has started
#
# An engine that answers is used as it is. Else, on Debian and as root, Docker is
# installed and started in network and mount namespaces of its own: it leaves no bridge
# and no firewall rule on the machine, and nothing gets out of its containers.
set -euo pipefail

# Debian's client has BuildKit; another one that comes first in PATH may lack it.
docker=$([ -x /usr/bin/docker ] && echo /usr/bin/docker || command -v docker || true)

answers() { [ -n "$docker" ] && "$docker" version >/dev/null 2>&1; }

install() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "engine.sh: no Docker engine answers, and only root on Debian can start one here" >&2
        exit 69
    fi
    apt-get update -qq
    apt-get install -qq --yes --no-install-recommends "$@" >/dev/null
}

start() {
    local folder=$1
    mkdir -p "$folder"
    # Limits above its own would take a capability that containers seldom have.
    cat >"$folder/start" <<START
#!/usr/bin/env bash
ip link set lo up
exec dockerd --host unix://$folder/docker.sock --pidfile $folder/pid \\
    --data-root $folder/data --exec-root $folder/exec --storage-driver overlay2 \\
    --default-ulimit nofile=1024:1024 --default-ulimit nproc=2048:2048 \\
    --bip 10.213.0.1/24 --default-address-pool base=10.213.64.0/18,size=24
START
    chmod +x "$folder/start"
    setsid unshare --net --mount "$folder/start" >"$folder/log" 2>&1 &
    for _ in $(seq 120); do
        DOCKER_HOST=unix://$folder/docker.sock /usr/bin/docker version >/dev/null 2>&1 && return
        sleep 0.5
    done
    tail -5 "$folder/log" >&2
    exit 1
}

up() {
    local folder
    folder=$(realpath -m "$1")
    if ! answers; then
        command -v dockerd >/dev/null && [ -x /usr/bin/docker ] || install docker.io iptables iproute2
        [ -S "$folder/docker.sock" ] || start "$folder"
        echo "export DOCKER_HOST=unix://$folder/docker.sock"
        docker=/usr/bin/docker
    fi
    echo "export DOCKER=$docker DOCKER_BUILDKIT=1"
}

base() {
    local folder=$1 tag=$2
    command -v mmdebstrap >/dev/null || install mmdebstrap
    [ -f "$folder/base.tar" ] ||
        mmdebstrap --quiet --variant=apt --include=python3,python3-venv bookworm "$folder/base.tar"
    "$docker" import --change 'CMD ["python3"]' "$folder/base.tar" "$tag" >/dev/null
}

case "$1" in
up) up "$2" ;;
base) base "$2" "$3" ;;
down) [ ! -f "$2/pid" ] || kill "$(cat "$2/pid")" ;;
*) sed -n '2,11s/^# \?//p' "$0" >&2; exit 64 ;;
esac
