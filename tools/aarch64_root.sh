#!/usr/bin/env bash
# aarch64_root.sh FOLDER: puts Debian's Python for aarch64, with the libraries and headers that the core needs,
# into FOLDER/root, and FOLDER/venv/bin/python, which starts it under qemu. The cross compiler and qemu-user are
# installed if they are missing (as root). apt works with lists of its own in FOLDER/apt: the machine's
# architectures and lists stay as they are.
set -euo pipefail
folder=$(mkdir -p "$1" && cd "$1" && pwd)

if ! command -v aarch64-linux-gnu-gcc >/dev/null || ! command -v qemu-aarch64 >/dev/null; then
  apt-get -qq update && apt-get -qq install -y --no-install-recommends gcc-aarch64-linux-gnu qemu-user
fi

mkdir -p "$folder"/apt/state/lists/partial "$folder"/apt/cache/archives/partial "$folder"/root "$folder"/venv/bin
: >"$folder/apt/status"
cat >"$folder/apt/conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Dir::State "$folder/apt/state";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt/cache";
CONF
export APT_CONFIG="$folder/apt/conf"
# Sources that have nothing for arm64 are warned about, and are not needed.
apt-get -qq update
python=$(apt-cache depends --important python3 | sed -n 's/^ *Depends: \(python3\.[0-9]*\)$/\1/p' | head -n 1)
apt-get -qq -y --download-only install "$python" "lib$python-dev" libnghttp2-dev
for package in "$folder"/apt/cache/archives/*.deb; do
  dpkg-deb -x "$package" "$folder/root"
done

cat >"$folder/venv/bin/python" <<RUN
#!/bin/sh
exec qemu-aarch64 -0 "\$0" -L "$folder/root" "$folder/root/usr/bin/$python" "\$@"
RUN
chmod +x "$folder/venv/bin/python"
printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n' "${python#python}" \
  >"$folder/venv/pyvenv.cfg"
"$folder/venv/bin/python" -c 'import platform, ssl; assert platform.machine() == "aarch64"'
