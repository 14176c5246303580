"""fetch.py URL FILE SHA256: fetches a file, and keeps it only if it is the one that is meant."""

import hashlib
import sys
import urllib.request

url, file, digest = sys.argv[1:]
try:
    content = urllib.request.urlopen(url, timeout=60).read()
except OSError as why:
    sys.exit(f"{url}: {why}")
if hashlib.sha256(content).hexdigest() != digest:
    sys.exit(f"{url} is not what it was")
open(file, "wb").write(content)
