"""fetch.py URL FILE SHA256: downloads a file, and saves it only if its digest matches."""

import hashlib
import sys
import urllib.request

url, file, digest = sys.argv[1:]
try:
    content = urllib.request.urlopen(url, timeout=60).read()
except OSError as error:
    sys.exit(f"{url}: {error}")
found = hashlib.sha256(content).hexdigest()
if found != digest:
    sys.exit(f"{url}: SHA-256 {found}: expected {digest}")
open(file, "wb").write(content)
