#!/bin/sh
# repository.sh: makes packaging/out/repository with an apt and an rpm repository of the packages in packaging/out, to be served by any web
# server or read from a folder. KEY=FINGERPRINT signs both with that key of gpg; without it, users have to trust the folder.
#   apt: deb [signed-by=/etc/apt/keyrings/vgpu.asc] https://HOST/apt ./
#   rpm: baseurl=https://HOST/rpm
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
packages dpkg-scanpackages:dpkg-dev apt-ftparchive:apt-utils
out=packaging/out
repository=$out/repository
rm -rf "$repository"
ls "$out"/vgpu_*_amd64.deb >/dev/null 2>&1 || {
    echo "$out: expected packages; run packaging/build.sh and packaging/package.sh" >&2
    exit 1
}

mkdir -p "$repository/apt"
cp "$out"/vgpu_*_amd64.deb "$repository/apt"
(
    cd "$repository/apt"
    dpkg-scanpackages --multiversion . 2>/dev/null >Packages
    gzip -9nk Packages
    apt-ftparchive -o APT::FTPArchive::Release::Origin=vgpu -o APT::FTPArchive::Release::Label=vgpu release . >.Release
    mv .Release Release
    if [ -n "${KEY:-}" ]; then
        gpg --batch --yes --local-user "$KEY" --clearsign --output InRelease Release
        gpg --batch --yes --local-user "$KEY" --armor --detach-sign --output Release.gpg Release
        gpg --armor --export "$KEY" >vgpu.asc
    fi
)

if ls "$out"/vgpu-*.rpm >/dev/null 2>&1; then
    packages createrepo_c:createrepo-c
    mkdir -p "$repository/rpm"
    cp "$out"/vgpu-*.rpm "$repository/rpm"
    createrepo_c --quiet --general-compress-type gz "$repository/rpm"
    # The list of files is in cli/Cargo.toml once more. The link to the library is made by the package's script.
    gzip -dc "$repository"/rpm/repodata/*-filelists.xml.gz | sed -n 's,.*<file[^>]*>\(.*\)</file>.*,.\1,p' >"$out/.files"
    (cd packaging/stage/root && find . -type f | sed 's,/zsh/vendor-completions/,/zsh/site-functions/,') |
        grep --line-regexp --invert-match --fixed-strings --file="$out/.files" >&2 && {
        echo "vgpu-*.rpm: expected these files, too" >&2
        exit 1
    }
    rm "$out/.files"
    if [ -n "${KEY:-}" ]; then
        gpg --batch --yes --local-user "$KEY" --armor --detach-sign "$repository/rpm/repodata/repomd.xml"
        gpg --armor --export "$KEY" >"$repository/rpm/vgpu.asc"
    fi
fi
echo "$repository"
