#!/usr/bin/env python3
"""render.py CHART < VALUES: lints and renders a chart with Helm's own library, for each of a JSON list of values.

Prints a JSON list of {"lint": [messages], "rendered": {template: text}, "error": text}. Needs the package helm-python-sdk.
"""

import json
import sys

import helm_python as helm

CHART = sys.argv[1]


def one(values):
    result = {"lint": [], "rendered": {}, "error": None}
    try:
        found = helm.lint(CHART, values, strict=True, namespace="vgpu-system", kube_version="1.34.0", quiet=False)
        result["lint"] = [str(message) for message in found.get("messages", [])]
        with helm.Chart.load(CHART) as chart:
            result["rendered"] = chart.render(values, name="vgpu", namespace="vgpu-system")
    except helm.HelmError as error:
        result["error"] = str(error)
    return result


print(json.dumps([one(values) for values in json.load(sys.stdin)]))
