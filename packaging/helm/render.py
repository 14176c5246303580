#!/usr/bin/env python3
"""render.py CHART < VALUES: lints and renders a chart with Helm's library, once for each entry of a JSON list of values.

Prints a JSON list of {"lint": [messages], "rendered": {template: text}, "error": text}. Requires the package helm-python-sdk.
"""

import json
import sys

import helm_python as helm

CHART = sys.argv[1]


def lint_and_render(values):
    result = {"lint": [], "rendered": {}, "error": None}
    try:
        findings = helm.lint(CHART, values, strict=True, namespace="vgpu-system", kube_version="1.34.0", quiet=False)
        result["lint"] = [str(message) for message in findings.get("messages", [])]
        with helm.Chart.load(CHART) as chart:
            result["rendered"] = chart.render(values, name="vgpu", namespace="vgpu-system")
    except helm.HelmError as error:
        result["error"] = str(error)
    return result


print(json.dumps([lint_and_render(values) for values in json.load(sys.stdin)]))
