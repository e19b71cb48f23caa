"""Security checks of rendered objects. Each is a function of the objects that yields complaints.

The first twelve are what every rendering must hold; the last three come with them.
"""

import re

import yaml

import chart


def _every_container(objects):
    """(where, pod template, container) of all."""
    for where, pod in chart.pod_templates(objects).items():
        for container in chart.containers(pod):
            yield f"{where}/{container['name']}", pod, container


def _context(pod, container, key):
    """A key of the security context that applies to a container."""
    return container.get("securityContext", {}).get(
        key, pod["spec"].get("securityContext", {}).get(key))


def _server_labels(objects):
    """Labels of the pods that serve: those that stay, not the pod of `helm test`."""
    return {where: pod["metadata"]["labels"] for where, pod in chart.pod_templates(objects).items()
            if not where.startswith("Pod/")}


def _selects(selector, labels):
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    for rule in selector.get("matchExpressions", []):
        assert rule["operator"] == "In", rule
        wanted = wanted and labels.get(rule["key"]) in rule["values"]
    return wanted


def _drain_seconds(objects):
    config = yaml.safe_load(chart.config_map(objects)["ringfill.yaml"])
    return config.get("server", {}).get("drain_timeout_s", 30)


def _pre_stop_seconds(container):
    hook = container.get("lifecycle", {}).get("preStop", {})
    if "sleep" in hook:
        return hook["sleep"]["seconds"]
    command = hook.get("exec", {}).get("command", [])
    return int(command[1]) if command[:1] == ["sleep"] else None


def non_root(objects):
    for where, pod, container in _every_container(objects):
        if _context(pod, container, "runAsNonRoot") is not True:
            yield f"{where}: runAsNonRoot is not true"
        for key in ("runAsUser", "runAsGroup"):
            if not _context(pod, container, key):
                yield f"{where}: {key} is not given, or 0"


def read_only_root(objects):
    for where, pod, container in _every_container(objects):
        if _context(pod, container, "readOnlyRootFilesystem") is not True:
            yield f"{where}: the root file system can be written"


def drop_all(objects):
    for where, pod, container in _every_container(objects):
        capabilities = _context(pod, container, "capabilities") or {}
        if capabilities.get("drop") != ["ALL"] or capabilities.get("add"):
            yield f"{where}: capabilities {capabilities}"


def seccomp(objects):
    for where, pod, container in _every_container(objects):
        profile = _context(pod, container, "seccompProfile") or {}
        if profile.get("type") != "RuntimeDefault":
            yield f"{where}: seccomp profile {profile}"


def no_token(objects):
    for where, pod in chart.pod_templates(objects).items():
        if pod["spec"].get("automountServiceAccountToken") is not False:
            yield f"{where}: a token is mounted"
    for item in objects:
        if item["kind"] == "ServiceAccount" and item.get("automountServiceAccountToken") is not False:
            yield "ServiceAccount: tokens are mounted"
        if item["kind"] in ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"):
            yield f"{item['kind']}: the account has rights"


def network_policy(objects):
    policies = [item["spec"] for item in objects if item["kind"] == "NetworkPolicy"]
    for where, labels in _server_labels(objects).items():
        mine = [spec for spec in policies if _selects(spec["podSelector"], labels)]
        if not any({"Ingress", "Egress"} <= set(spec["policyTypes"]) for spec in mine):
            yield f"{where}: no policy bounds what comes in and what goes out"
    # gRPC, metrics, and any port only between the release's own pods.
    _, daemon = chart.daemon(objects)
    health = {daemon[probe]["grpc"]["port"] for probe in ("readinessProbe",) if probe in daemon}
    for spec in policies:
        for rule in spec.get("ingress", []):
            if not rule.get("from"):
                yield "NetworkPolicy: a rule lets anybody in"
            if not rule.get("ports"):
                yield "NetworkPolicy: a rule opens every port"
            own = all(_is_own(peer) for peer in rule.get("from", []))
            for port in rule.get("ports", []):
                if "endPort" in port and not own:
                    yield "NetworkPolicy: a range of ports is open to others than ranks"
                if port["port"] == 50063 and port["port"] in health:
                    yield "NetworkPolicy: the health port is open"


def _is_own(peer):
    labels = peer.get("podSelector", {}).get("matchLabels", {})
    return "app.kubernetes.io/instance" in labels and "namespaceSelector" not in peer


def limits(objects):
    for where, _, container in _every_container(objects):
        resources = container.get("resources", {})
        for kind in ("requests", "limits"):
            for name in ("cpu", "memory"):
                if not resources.get(kind, {}).get(name):
                    yield f"{where}: no {kind}.{name}"


def probes(objects):
    """All three on the daemon and on what is in front of it, all different."""
    for where, pod, container in _every_container(objects):
        # One pod's task ends by itself; a rank is watched by the daemon (_pod.tpl says how).
        if where.startswith("Pod/") or container["name"] in ("rank", "model"):
            continue
        found = [container.get(f"{kind}Probe") for kind in ("startup", "readiness", "liveness")]
        if None in found:
            yield f"{where}: a probe is missing"
        elif found[1] == found[2] or found[0] == found[2]:
            yield f"{where}: liveness is as strict as another probe"
        elif container["name"] == "ringfilld" and not all("grpc" in probe for probe in found):
            yield f"{where}: health is not asked over gRPC"
        ports = {port["containerPort"] for each in chart.containers(pod)
                 for port in each.get("ports", [])}
        for probe in filter(None, found):
            if "grpc" in probe and probe["grpc"]["port"] not in ports:
                yield f"{where}: a probe asks port {probe['grpc']['port']}, where nothing listens"


def pre_stop(objects):
    """The daemon waits before SIGTERM, and what it needs outlives it."""
    for where, _, container in _every_container(objects):
        if where.startswith("Pod/") or container["name"] == "model":
            continue
        if container.get("restartPolicy") == "Always":
            continue  # a native sidecar ends after the containers
        seconds = _pre_stop_seconds(container)
        if not seconds:
            yield f"{where}: no preStop"
        elif container["name"] != "ringfilld":
            daemon_seconds = _pre_stop_seconds(chart.daemon(objects)[1]) or 0
            if seconds <= daemon_seconds + _drain_seconds(objects):
                yield f"{where}: ends while the daemon drains"


def grace(objects):
    for where, pod in chart.pod_templates(objects).items():
        if where.startswith("Pod/"):
            continue
        seconds = pod["spec"].get("terminationGracePeriodSeconds", 30)
        least = (_pre_stop_seconds(chart.daemon(objects)[1]) or 0) + _drain_seconds(objects)
        longest = max((_pre_stop_seconds(each) or 0) for each in pod["spec"]["containers"])
        if seconds <= max(least, longest):
            yield f"{where}: {seconds} s of grace, {least} s of preStop and drain"


def disruption_budget(objects):
    budgets = [item["spec"] for item in objects if item["kind"] == "PodDisruptionBudget"]
    for where, pod in chart.pod_templates(objects).items():
        count = sum(_selects(spec["selector"], pod["metadata"]["labels"]) for spec in budgets)
        # One for each pod that serves; a bare pod in a budget makes it an error.
        if count != (0 if where.startswith("Pod/") else 1):
            yield f"{where}: {count} disruption budgets"


def metrics_are_private(objects):
    pod, _ = chart.daemon(objects)
    numbers = {port["containerPort"] for container in chart.containers(pod)
               for port in container.get("ports", []) if port["name"] != "grpc"}
    for item in objects:
        if item["kind"] == "Ingress":
            yield "an Ingress is rendered"
        if item["kind"] != "Service":
            continue
        for port in item["spec"]["ports"]:
            if port["targetPort"] != "grpc" or port["port"] in numbers:
                yield f"Service/{item['metadata']['name']}: port {port['port']} is not gRPC"


def no_escalation(objects):
    for where, pod, container in _every_container(objects):
        if _context(pod, container, "allowPrivilegeEscalation") is not False:
            yield f"{where}: privileges can be raised"
        if _context(pod, container, "privileged"):
            yield f"{where}: privileged"


def nothing_of_the_host(objects):
    for where, pod in chart.pod_templates(objects).items():
        spec = pod["spec"]
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            if spec.get(key):
                yield f"{where}: {key}"
        for volume in spec.get("volumes", []):
            if "hostPath" in volume:
                yield f"{where}: volume {volume['name']} is a path of the host"
        for container in chart.containers(pod):
            if any("hostPort" in port for port in container.get("ports", [])):
                yield f"{where}: a port of the host"


def fixed_images(objects):
    for where, _, container in _every_container(objects):
        if not re.search(r"@sha256:[0-9a-f]{64}$|:(?!latest$)[^:/]+$", container["image"]):
            yield f"{where}: image {container['image']} can change"


CHECKS = (non_root, read_only_root, drop_all, seccomp, no_token, network_policy, limits, probes,
          pre_stop, grace, disruption_budget, metrics_are_private,
          no_escalation, nothing_of_the_host, fixed_images)
