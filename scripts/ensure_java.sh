#!/usr/bin/env bash
# Find Java 17 or newer, or install a JRE from the system's packages.
#
# Only Spark needs it. Ends with 0 when there is one, and with 1 and the reason when there is
# none and this script cannot install it. Never asks, never uses sudo.
set -euo pipefail

wanted=17

# Print the major version of a java program: 17 for "17.0.9", 8 for "1.8.0_392".
major_of() {
    local version
    # Without performance data, which Java would leave a folder for in /tmp.
    version=$("$1" -XX:-UsePerfData -version 2>&1 | sed -n 's/.* version "\([^"]*\)".*/\1/p' | head -n 1) || true
    version=${version#1.}
    echo "${version%%[!0-9]*}"
}

# The Java that Spark will use: that of JAVA_HOME, else the one on PATH.
find_java() {
    local candidate="${JAVA_HOME:+$JAVA_HOME/bin/}java" major
    command -v "$candidate" >/dev/null 2>&1 || return 1
    major=$(major_of "$candidate")
    [ -n "$major" ] && [ "$major" -ge "$wanted" ] || return 1
    echo "ensure_java: Java $major found: $(command -v "$candidate")"
}

give_up() {
    {
        echo "ensure_java: no Java $wanted or newer, and none could be installed: $1"
        echo "  Pipelines on Spark will not run here; everything else does."
        echo "  $2"
    } >&2
    exit 1
}

install_first() {
    local package
    for package in "${packages[@]}"; do
        echo "ensure_java: $* $package"
        "$@" "$package" </dev/null && return
    done
    give_up "every package failed (${packages[*]})" "Install one of them by hand and run 'make java'."
}

need_root() {
    [ "$(id -u)" -eq 0 ] || give_up "not root" "Run as root: $* ${packages[0]}"
}

find_java && exit 0
[ -z "${JAVA_HOME:-}" ] || give_up "JAVA_HOME is $JAVA_HOME, which has none" \
    "Point JAVA_HOME to a newer one, or unset it."

if command -v apt-get >/dev/null 2>&1; then
    packages=(openjdk-17-jre-headless openjdk-21-jre-headless)
    need_root apt-get install
    export DEBIAN_FRONTEND=noninteractive
    apt-get update --quiet </dev/null || echo "ensure_java: apt-get update failed; trying anyway" >&2
    install_first apt-get install --quiet --yes --no-install-recommends
elif command -v dnf >/dev/null 2>&1; then
    packages=(java-17-openjdk-headless java-21-openjdk-headless)
    need_root dnf install
    install_first dnf install --assumeyes
elif command -v apk >/dev/null 2>&1; then
    packages=(openjdk17-jre-headless openjdk21-jre-headless)
    need_root apk add
    install_first apk add --no-cache
elif command -v brew >/dev/null 2>&1; then
    packages=(openjdk@17 openjdk@21)
    install_first brew install
    # Homebrew does not link a versioned JDK into PATH.
    export PATH="$(brew --prefix)/opt/openjdk@17/bin:$(brew --prefix)/opt/openjdk@21/bin:$PATH"
else
    give_up "no apt-get, dnf, apk or brew" "Install a JRE of version $wanted or newer by hand."
fi

hash -r
find_java || give_up "the package was installed but java is not found" \
    "Put its bin folder into PATH or set JAVA_HOME."
