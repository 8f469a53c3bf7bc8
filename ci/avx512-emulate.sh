#!/usr/bin/env bash
# Runs a static linux/amd64 program on an emulated processor with AVX-512
# (F, CD, BW, DQ, VL), for machines whose own processor has none.
#
#   CGO_ENABLED=0 go test -c -o some.test ./some/package
#   ci/avx512-emulate.sh some.test -test.v -test.short
#
# Prints what the program prints (standard error too, on standard output) and
# exits with its exit code, or with 125 if it could not be run or took too long.
# The program finds itself in the same working directory as here, which is
# empty but for what EMULATE_FILES names.
#
#   EMULATE_FILES    files and folders to copy to the guest, relative to the
#                    working directory or absolute, separated by spaces
#   EMULATE_ENV      NAME or NAME=VALUE for the program, separated by spaces
#   EMULATE_TIMEOUT  time limit, such as 90s or 20m (20m)
#   EMULATE_MEM      memory of the guest in MiB (1024)
#   EMULATE_IPS      millions of instructions per second of the guest's clock
#                    (200): less makes the guest's clock run faster
#   EMULATE_VERBOSE  if not empty, show the kernel's messages and the times
#
# Without arguments it only gets ready. Needs root for what it installs with
# apt-get, unless that is there already: a C++ compiler, make, xz and tar. The
# emulator (Bochs, built from Debian's copy of its source) and the kernel
# (Debian's) are kept in ${XDG_CACHE_HOME:-~/.cache}/avx512-emulate.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/avx512-emulate
mkdir -p "$cache"

bochs_version=3.0
bochs_sha256=78f6c73d4a6472d5130a87ab9dc306d02c7c71ed8e25b3a8ef642e2a7acd282b
# A new name for each way of building it.
bochs=$cache/bochs-$bochs_version-1
kernel=$cache/vmlinuz
tools=$cache/tools-$(cat "$here"/emulate/*.go "$here"/emulate/guest/*.go | sha256sum | cut -c 1-12)

updated=
apt_update() {
	[ -n "$updated" ] || apt-get update -qq >&2
	updated=1
}

install_missing() { # command package...
	command -v "$1" >/dev/null && return
	shift
	apt_update
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

# build_bochs builds only what is needed: one processor, no devices to speak of.
build_bochs() {
	install_missing g++ g++
	install_missing make make
	install_missing xz xz-utils
	local dir=$1 site
	apt_update
	site=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Component: main' 'Origin: Debian' 'Label: Debian' | head -n 1)
	/usr/lib/apt/apt-helper download-file \
		"$site/pool/main/b/bochs/bochs_$bochs_version+dfsg.orig.tar.xz" "$dir/bochs.tar.xz" "SHA256:$bochs_sha256" >&2
	mkdir "$dir/bochs"
	tar -xf "$dir/bochs.tar.xz" -C "$dir/bochs" --strip-components=1
	cd "$dir/bochs"
	# Guest memory comes in blocks in any order, but load_RAM reads a whole
	# file as if they were one.
	sed -i '/::load_RAM/,/^}/s/get_vector(offset), size)/get_vector(offset), size < 4096 ? size : 4096)/' memory/misc_mem.cc
	grep -q 'size < 4096' memory/misc_mem.cc
	export CFLAGS='-O3 -pipe -fomit-frame-pointer' CXXFLAGS='-O3 -pipe -fomit-frame-pointer'
	./configure --enable-cpu-level=6 --enable-x86-64 --enable-avx --enable-evex \
		--enable-all-optimizations --enable-repeat-speedups --enable-fast-function-calls \
		--enable-handlers-chaining --enable-trace-linking \
		--disable-large-ramfile --disable-plugins --disable-docbook \
		--without-x --without-x11 --with-nogui >configure.out 2>&1 || { tail -n 30 configure.out >&2; return 1; }
	make -j"$(nproc)" >make.out 2>&1 || { tail -n 30 make.out >&2; return 1; }
	strip -o "$dir/bochs.bin" bochs
	mv "$dir/bochs.bin" "$bochs"
}

get_kernel() {
	local dir=$1 package
	cd "$dir"
	apt_update
	package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[^ ]*\)/\1/p' | head -n 1)
	apt-get download -qq "$package" >&2
	dpkg -x linux-image-*.deb kernel
	mv kernel/boot/vmlinuz-* "$kernel"
}

exec 9>"$cache/lock"
flock 9
for part in bochs kernel; do
	if [ ! -e "${!part}" ]; then
		dir=$(mktemp -d)
		chmod 755 "$dir" # apt-get downloads as another user
		trap 'rm -rf "$dir"' EXIT
		if [ $part = bochs ]; then
			(build_bochs "$dir")
		else
			(get_kernel "$dir")
		fi
		rm -rf "$dir"
	fi
done
if [ ! -e "$tools" ]; then
	(
		cd "$here/emulate"
		export CGO_ENABLED=0 GOOS=linux GOARCH=amd64 GOFLAGS=
		go build -o "$tools.new/emulate" .
		go build -ldflags=-s -o "$tools.new/init" ./guest
		mv "$tools.new" "$tools"
	)
fi
flock -u 9
exec 9>&-

[ $# -gt 0 ] || exit 0
exec "$tools/emulate" -bochs "$bochs" -kernel "$kernel" -init "$tools/init" \
	-mem "${EMULATE_MEM:-1024}" -ips "${EMULATE_IPS:-200}" \
	-files "${EMULATE_FILES:-}" -env "${EMULATE_ENV:-}" -timeout "${EMULATE_TIMEOUT:-20m}" \
	${EMULATE_VERBOSE:+-v} -- "$@"
