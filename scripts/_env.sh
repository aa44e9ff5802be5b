# Making virtual environments, for the scripts beside this file (POSIX sh; sourced from the root).

say() { printf '%s\n' "$*" >&2; }
die() { say "$0: $*"; exit 2; }

# The interpreter that environments are made from: $PYTHON, or the first of the usual names that
# starts (pyenv puts commands on the PATH that only complain) and is new enough.
find_python() {
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    die "no Python 3.10 or later found as ${PYTHON:-python3}; set PYTHON=/path/to/python"
}

# find_exact VERSION: that Python itself ("3.10"), from the PATH or from pyenv; nothing where it is
# not installed.
find_exact() {
    if "python$1" -c '' 2>/dev/null; then
        command -v "python$1"
    elif command -v pyenv >/dev/null; then
        version=$(pyenv versions --bare 2>/dev/null | grep "^$1\." | tail -n 1)
        if [ -n "$version" ]; then
            echo "$(pyenv prefix "$version")/bin/python$1"
        fi
    fi
}

# Python 3.13, or the usual one where there is none.
find_python313() {
    python313=$(find_exact 3.13)
    if [ -n "$python313" ]; then echo "$python313"; else find_python; fi
}

# make_venv DIR PYTHON [OPTION]: make DIR unless an interpreter that starts is in it already.
make_venv() {
    if "$1/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        return
    fi
    say "making $1 with $("$2" -V)"
    "$2" -m venv --clear ${3:-} "$1" ||
        die "could not make $1; on Debian and Ubuntu 'apt install python3-venv' brings what is missing"
}

# The environment of the tests, .venv.
test_environment() {
    make_venv .venv "$(find_python)"
    install .venv torch==2.13.0 jax -e '.[test,peers,ray]'
}

# What builds and checks the distributions, .venv-wheel.
make_wheel_environment() {
    make_venv .venv-wheel "$(find_python)"
    install .venv-wheel "hatchling>=1.27" "twine>=6" "pytest>=9,<10" "pyte>=0.8" psutil -e .
}

# make_uv: uv, in .venv-uv, with the indexes that pip is set up for. It resolves and unpacks in a
# minute what takes pip six (torch, jax, ray and the tests' tools).
make_uv() {
    if [ ! -x .venv-uv/bin/uv ]; then
        make_venv .venv-uv "$(find_python)"
        .venv-uv/bin/python -m pip install -qq --disable-pip-version-check 'uv>=0.9'
    fi
    export UV_INDEX_STRATEGY=unsafe-best-match # as pip, which takes the best of all indexes
    export UV_FIND_LINKS="${UV_FIND_LINKS-$(pip_setting find-links | tr ' ' ,)}"
    export UV_EXTRA_INDEX_URL="${UV_EXTRA_INDEX_URL-$(pip_setting extra-index-url)}"
    index=$(pip_setting index-url)
    if [ -n "$index" ]; then export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX-$index}"; fi
}

# pip_setting NAME: what pip's files and variables say, with blanks between several.
pip_setting() {
    .venv-uv/bin/python -m pip config list |
        sed -n "s/^[a-z:]*\.$1='\(.*\)'\$/\1/p" | tail -n 1 | sed 's/\\n/ /g; s/^ *//; s/ *$//'
}

# install DIR REQUIREMENT...: install into DIR unless exactly this was installed there before.
# The stamp covers what the requirements stand for: pyproject.toml and these scripts.
install() {
    dir=$1
    shift
    stamp=$(
        "$dir/bin/python" - "$@" <<'PY'
import hashlib, pathlib, sys
digest = hashlib.sha256(repr((sys.version_info[:2], sys.argv[1:])).encode())
for name in ("pyproject.toml", "scripts/_env.sh", "scripts/test"):
    digest.update(pathlib.Path(name).read_bytes())
print(digest.hexdigest())
PY
    )
    if [ "$(cat "$dir/.xmp-stamp" 2>/dev/null)" != "$stamp" ]; then
        say "installing into $dir: $*"
        make_uv
        # Python compiles at the first import: of 21,000 files a tenth is ever imported.
        .venv-uv/bin/uv pip install -q --python "$dir/bin/python" "$@"
        echo "$stamp" >"$dir/.xmp-stamp"
    fi
    # Where PYTHONDONTWRITEBYTECODE is set, every program under test would compile xmp again: 0.4 s.
    "$dir/bin/python" -m compileall -q xmp tests/support
}

# low_bounds DIR EXTRA...: the oldest versions that pyproject.toml allows of what xmp and these extras
# need, as pip's requirements. tomllib came with Python 3.11; pip brings its own.
low_bounds() {
    dir=$1
    shift
    "$dir/bin/python" - "$@" <<'PY'
import sys
from pip._vendor import tomli
from pip._vendor.packaging.requirements import Requirement

with open("pyproject.toml", "rb") as file:
    project = tomli.load(file)["project"]
lists = [project["optional-dependencies"][extra] for extra in sys.argv[1:]]
for requirement in map(Requirement, sum(lists, project["dependencies"])):
    for bound in requirement.specifier:
        if bound.operator == ">=":
            print(f"{requirement.name}=={bound.version}.*")
PY
}

# unpack DIR PACKAGE...: packages of Debian, and those that they need and this system lacks, into
# DIR/unpacked, unless they are there. Nothing is installed. The lists of packages are brought up to
# date in DIR too: a system without any, or with old ones, finds none of the files.
unpack() {
    if [ -e "$1/complete" ]; then
        return
    fi
    dir=$1
    shift
    command -v apt-get >/dev/null || die "$* is unpacked from packages of Debian or Ubuntu"
    say "unpacking into $dir: $*"
    rm -rf "$dir"
    mkdir -p "$dir/packages/partial" "$dir/lists/partial" "$dir/unpacked"
    download "$PWD/$dir" "$@" >"$dir/log" 2>&1 || {
        cat "$dir/log" >&2
        die "could not download the packages of $*"
    }
    for package in "$dir"/packages/*.deb; do
        dpkg -x "$package" "$dir/unpacked"
    done
    rm -r "$dir/lists"
    touch "$dir/complete"
}

# download DIR PACKAGE...: with --reinstall also what is installed already is downloaded.
download() {
    to=$1
    shift
    apt() {
        apt-get -q -y -o "Dir::Cache::archives=$to/packages" -o "Dir::State::lists=$to/lists" \
            -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache=" -o APT::Sandbox::User=root "$@"
    }
    apt update && apt -o Debug::NoLocking=1 install --download-only --reinstall \
        --no-install-recommends "$@"
}
