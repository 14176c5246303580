#!/usr/bin/env python3
"""face.py DRIVER FOLDER TO: makes a copy of the simulated driver in FOLDER that plays another driver: its versions, and the functions that
it has (since.txt). DRIVER is one of FACES.

A function that the driver lacks is made undefined in the library's symbols, and named in the library's list for cuGetProcAddress
(device/src/face.rs)."""

import pathlib
import struct
import sys

# CUDA version times 1000, and the version of the driver. `next` is newer than all that vgpu knows.
FACES = {"470": (11040, "470.00.00"), "535": (12020, "535.00.00"), "580": (13000, "580.00.00"), "next": (13060, "999.00.00")}
MARK = b"simgpu face 1\0\0\0"
ROOM = 16 << 10
# Binding of an undefined symbol that programs can be linked without.
WEAK = 2 << 4


def sections(image):
    """Yields type, offset, size and linked section of each section of a 64-bit ELF file."""
    start, = struct.unpack_from("<Q", image, 0x28)
    size, count = struct.unpack_from("<HH", image, 0x3A)
    for index in range(count):
        _, kind, _, _, offset, length, link = struct.unpack_from("<IIQQQQI", image, start + index * size)
        yield kind, offset, length, link


def undefine(image, names):
    """Makes the dynamic symbols with these names undefined."""
    table = list(sections(image))
    _, offset, length, link = next(section for section in table if section[0] == 11)
    strings = table[link][1]
    for at in range(offset, offset + length, 24):
        name = strings + struct.unpack_from("<I", image, at)[0]
        if bytes(image[name:image.index(0, name)]).decode() in names:
            struct.pack_into("<BBHQQ", image, at + 4, WEAK, 0, 0, 0, 0)


def main():
    face, source, to = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    version, driver = FACES[face]
    lines = (pathlib.Path(__file__).parent / "since.txt").read_text().splitlines()
    lacking = {name for name, since in (line.split() for line in lines) if int(since) > version}
    listed = "\0".join(sorted(lacking)).encode()
    assert len(listed) < ROOM, "the list is too long: enlarge ROOM here and in device/src/face.rs"
    to.mkdir(parents=True, exist_ok=True)
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"]:
        image = bytearray((source / name).read_bytes())
        undefine(image, lacking)
        at = image.index(MARK) + len(MARK)
        struct.pack_into(f"<i12s{ROOM}s", image, at, version, driver.encode(), listed)
        # Replaced by rename, so that a process that has the old file mapped keeps it.
        (to / f".{name}.new").write_bytes(image)
        (to / f".{name}.new").chmod(0o755)
        (to / f".{name}.new").rename(to / name)


if __name__ == "__main__":
    main()
