#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: deploy/sbom.sh SERVER
#
# Prints the software bill of materials of the machine or image where it runs, as a tag-value document
# of SPDX 2.3: the server, and every Debian package that is installed beside it, with versions and
# package URLs. SOURCE_DATE_EPOCH, if set, is the time that it says.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
case "${1:-}" in
  "") usage_of "$0" >&2; exit 2 ;;
  --help | -h) usage_of "$0"; exit 0 ;;
esac

version="$("$1" --version)" || fail "$1 does not say its version"
version="${version##* }"
created="$(date -u -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}" +%Y-%m-%dT%H:%M:%SZ)"
# shellcheck disable=SC2016 # the names are dpkg-query's
packages="$(dpkg-query -W -f '${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\t${source:Package}\t${source:Version}\n')"
[ -n "$packages" ] || fail "dpkg lists no package"
namespace="$({ echo "$version $created $packages"; cat "$1"; } | sha256sum | cut -c 1-32)"

cat <<DOCUMENT
SPDXVersion: SPDX-2.3
DataLicense: CC0-1.0
SPDXID: SPDXRef-DOCUMENT
DocumentName: deeppcr-serve-$version
DocumentNamespace: https://spdx.org/spdxdocs/deeppcr-serve-$namespace
Creator: Tool: deeppcr-sbom-$version
Created: $created

PackageName: deeppcr-server
SPDXID: SPDXRef-deeppcr-server
PackageVersion: $version
PackageChecksum: SHA256: $(sha256sum "$1" | cut -d ' ' -f 1)
PackageDownloadLocation: NOASSERTION
FilesAnalyzed: false
PackageLicenseDeclared: Apache-2.0
Relationship: SPDXRef-DOCUMENT DESCRIBES SPDXRef-deeppcr-server
DOCUMENT

awk -F '\t' '
  function escaped(text) {
    gsub(/\+/, "%2B", text)
    gsub(/:/, "%3A", text)
    return text
  }
  $1 ~ /^.i/ {
    id = "SPDXRef-Package-" ++count
    printf "\nPackageName: %s\nSPDXID: %s\nPackageVersion: %s\n", $2, id, $3
    printf "PackageSourceInfo: built package from: %s %s\n", $5, $6
    printf "PackageDownloadLocation: NOASSERTION\nFilesAnalyzed: false\n"
    printf "ExternalRef: PACKAGE-MANAGER purl pkg:deb/debian/%s@%s?arch=%s\n", escaped($2), escaped($3), $4
    printf "Relationship: SPDXRef-DOCUMENT DESCRIBES %s\n", id
  }' <<<"$packages"
