#!/usr/bin/env bash
# Judges the crates we depend on by deny.toml: licences, banned crates, where they come from, and, where the database
# of advisories can be had, known holes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

judge() { # OPTION… CHECK…
    local manifest
    for manifest in Cargo.toml fuzz/Cargo.toml; do
        # An exception or licence met in one of the two workspaces is not met in the other.
        cargo deny --log-level warn --manifest-path "$manifest" --config deny.toml check --hide-inclusion-graph \
            -A license-exception-not-encountered -A license-not-encountered "$@"
    done
}

judge licenses bans sources
if timeout 120 cargo deny --log-level error fetch db </dev/null >/dev/null 2>&1; then
    judge --disable-fetch advisories
else
    echo "deny: advisories skipped: their database cannot be fetched from here"
fi
