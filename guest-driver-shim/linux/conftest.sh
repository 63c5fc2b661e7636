#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Arguments: HEADER PROBES COMPILER FLAGS...
#
# Writes HEADER with one HAVE_ line for each snippet in the folder PROBES: a
# #define if it compiles, a comment if not. baseline.c must compile; if it
# does not, nothing that the others say can be believed.
set -eu

header=$1
probes=$2
shift 2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Warnings of a snippet are of no interest, only whether it is valid C.
compiles() {
	"$@" -w -DKBUILD_MODNAME='"conftest"' -DKBUILD_BASENAME='"conftest"' \
		-c -o "$work/probe.o" "$source" >"$work/log" 2>&1
}

source=$probes/baseline.c
if ! compiles "$@"; then
	cat "$work/log" >&2
	echo "$0: $source does not compile; are the kernel headers complete?" >&2
	exit 1
fi

{
	echo "/* Generated from probes/; do not edit. */"
	for source in "$probes"/*.c; do
		name=$(basename "$source" .c)
		[ "$name" != baseline ] || continue
		macro=HAVE_$(echo "$name" | tr '[:lower:]' '[:upper:]')
		if compiles "$@"; then
			echo "#define $macro 1"
		else
			echo "/* $macro is not defined */"
		fi
	done
} >"$work/header"
mv "$work/header" "$header"
