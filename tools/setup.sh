#!/usr/bin/env bash
# Installs what building, testing and checking need on a Debian host that has Rust. What is there already is left
# alone, so a second run takes no time. Says what it installs.
#
#   tools/setup.sh            a C compiler, make, git
#   tools/setup.sh --lab      and the lab: the tree of QEMU and guest kernels that virtual machines run from
#   tools/setup.sh --lint     and rustfmt and clippy
#   tools/setup.sh --fuzz     and a C++ compiler
#   tools/setup.sh --deny     and cargo-deny
#
# Options may be combined. Packages and the lab need root; without it, this says what is missing and ends with 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Raised by hand; a newer one may judge otherwise.
deny_version=0.20.2
min_rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

lab=false lint=false fuzz=false deny=false
for option in "$@"; do
    case $option in
        --lab) lab=true ;;
        --lint) lint=true ;;
        --fuzz) fuzz=true ;;
        --deny) deny=true ;;
        *) die "unknown option '$option'. Usage: tools/setup.sh [--lab] [--lint] [--fuzz] [--deny]" ;;
    esac
done

# --- Rust -------------------------------------------------------------------------------------------
command -v cargo >/dev/null || die "cargo is not in PATH. Install Rust $min_rust or newer with rustup."
rust=$(rustc --version | cut -d' ' -f2)
[ "$(printf '%s\n' "$min_rust" "${rust%%-*}" | sort -V | head -n 1)" = "$min_rust" ] ||
    die "this is Rust $rust, $min_rust or newer is needed. Run: rustup update stable"

# --- Debian packages --------------------------------------------------------------------------------
missing=()
need() { # PACKAGE TEST…
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}
need gcc command -v cc
need libc6-dev test -e /usr/include/stdio.h -a -e /usr/include/linux/types.h
need make command -v make
need git command -v git
if $fuzz; then need g++ command -v c++; fi
# Programs of the lab run in mount namespaces of their own; a disk with a Debian of its own is made for the guest that
# follows the README.
if $lab; then
    need util-linux command -v unshare
    need mount command -v mount
fi
if [ ${#missing[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || die "missing: ${missing[*]} (Debian's names). Install them and run this again."
    [ "$(id -u)" = 0 ] || die "missing: ${missing[*]}. Run as root: apt-get install ${missing[*]}"
    say "installing with apt-get: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    install=(apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3
        install --no-install-recommends "${missing[@]}")
    # The package lists may be missing or stale; sources of others that fail to update are not our concern.
    if ! "${install[@]}" </dev/null >&2; then
        say "package lists look stale: running apt-get update"
        apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 update </dev/null >&2 || true
        "${install[@]}" </dev/null >&2 || die "apt-get could not install ${missing[*]} (see above)"
    fi
fi

# --- Rust's own tools -------------------------------------------------------------------------------
if $lint; then
    for component in rustfmt clippy; do
        tool=cargo-${component/rustfmt/fmt}
        if "$tool" --version >/dev/null 2>&1; then continue; fi
        command -v rustup >/dev/null || die "$component is missing and there is no rustup to add it with"
        say "adding with rustup: $component"
        rustup component add "$component" >&2
    done
fi
if $deny && ! cargo deny --version >/dev/null 2>&1; then
    say "installing with cargo: cargo-deny $deny_version (a few minutes, once)"
    cargo install --quiet --locked "cargo-deny@$deny_version" >&2
fi

# --- The lab ----------------------------------------------------------------------------------------
if $lab; then
    [ "$(id -u)" = 0 ] ||
        die "virtual machines need root. What needs none: cargo test --workspace --exclude vram-integration"
    integration/lab/build-tree.sh >/dev/null
fi
