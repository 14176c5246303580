#!/bin/sh
# sign.sh gpg|minisign|cosign [FILE]…: signs packages with a key that is not in this repository, and verifies the result.
#   gpg       KEY is the key's fingerprint; the secret key is in gpg's keyring or on a card
#   minisign  KEY is the file of the secret key, and PUBLIC that of the public key
#   cosign    KEY is a key file or a KMS reference (awskms://, gcpkms://, hashivault://), and PUBLIC the public key;
#             FILE may be an image by digest, too: REGISTRY/vgpu@sha256:...
# Default: all files in packaging/out. The digests of the files are signed in SHA256SUMS, next to them.
set -eu
usage() {
    echo "usage: KEY=... [PUBLIC=...] $0 gpg|minisign|cosign [FILE]..." >&2
    exit 2
}
[ $# -gt 0 ] && [ -n "${KEY:-}" ] || usage
tool=$1
shift
command -v "$tool" >/dev/null || { echo "$tool not found" >&2; exit 1; }

# sign_file FILE: signs one file, and verifies the signature.
sign_file() {
    case $tool in
    gpg)
        gpg --batch --yes --local-user "$KEY" --armor --output "$1.asc" --detach-sign "$1"
        gpg --batch --verify "$1.asc" "$1"
        ;;
    minisign)
        minisign -S -s "$KEY" -m "$1"
        minisign -V -p "${PUBLIC:?PUBLIC: expected the file of the public key}" -m "$1"
        ;;
    cosign)
        cosign sign-blob --yes --key "$KEY" --bundle "$1.bundle" "$1"
        cosign verify-blob --key "${PUBLIC:?PUBLIC: expected the public key}" --bundle "$1.bundle" "$1"
        ;;
    *) usage ;;
    esac
}

# An image is signed in its registry, by digest: a tag may be moved.
case ${1:-} in
*@sha256:*)
    [ "$tool" = cosign ] || usage
    cosign sign --yes --key "$KEY" "$1"
    exec cosign verify --key "${PUBLIC:?PUBLIC: expected the public key}" "$1"
    ;;
esac
if [ $# = 0 ]; then
    cd "$(dirname "$0")/out"
    set -- *.deb *.rpm *.tar.gz
fi
files=
for file in "$@"; do
    [ ! -f "$file" ] || files="$files $file"
done
[ -n "$files" ] || { echo "nothing to sign: expected packages in packaging/out" >&2; exit 1; }
# shellcheck disable=SC2086
sha256sum $files >SHA256SUMS
sign_file SHA256SUMS
