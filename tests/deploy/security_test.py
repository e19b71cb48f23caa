"""Every rendering holds every check of security.py, and each check finds what it is there for."""

import copy
import unittest

import chart
import security

# What every rendering must hold: the checks that the project has set itself, and those that came with them.
WANTED = {
    "non_root", "read_only_root", "drop_all", "seccomp", "no_token", "network_policy", "limits", "probes", "pre_stop",
    "grace", "disruption_budget", "metrics_are_private",
}
MORE = {"no_escalation", "nothing_of_the_host", "fixed_images"}
# Value sets that leave something out on purpose.
WAIVED = {"bare": {"network_policy", "disruption_budget"}}


def _spec(objects):
    return chart.daemon(objects)[0]["spec"]


def _container(objects):
    return chart.daemon(objects)[1]


def _kind(objects, kind):
    return next(item for item in objects if item["kind"] == kind)


def _remove(objects, kind):
    objects[:] = [item for item in objects if item["kind"] != kind]


def _open_to_all(objects):
    _kind(objects, "NetworkPolicy")["spec"]["ingress"][0]["from"] = []


def _open_port(objects, port):
    _kind(objects, "NetworkPolicy")["spec"]["ingress"][0]["ports"].append(port)


def _any_seccomp(objects):
    _container(objects)["securityContext"]["seccompProfile"] = {"type": "Unconfined"}


def _wide_budget(objects):
    _kind(objects, "PodDisruptionBudget")["spec"]["selector"].pop("matchExpressions")


def _host_path(objects):
    _spec(objects)["volumes"].append({"name": "x", "hostPath": {"path": "/"}})


def _capabilities(objects, **changed):
    _container(objects)["securityContext"]["capabilities"].update(changed)


def _metrics_on_service(objects):
    _kind(objects, "Service")["spec"]["ports"].append(
        {"name": "metrics", "port": 9464, "targetPort": "metrics"})


def _drain_longer(objects):
    files = chart.config_map(objects)
    files["ringfill.yaml"] = files["ringfill.yaml"].replace("drain_timeout_s: 30",
                                                            "drain_timeout_s: 300")


# The check that must complain, and what breaks a rendering.
BREAKS = (
    ("non_root", lambda o: _spec(o)["securityContext"].pop("runAsNonRoot")),
    ("non_root", lambda o: _container(o)["securityContext"].update(runAsUser=0)),
    ("read_only_root", lambda o: _container(o)["securityContext"].pop("readOnlyRootFilesystem")),
    ("drop_all", lambda o: _capabilities(o, drop=["KILL"])),
    ("drop_all", lambda o: _capabilities(o, add=["SYS_ADMIN"])),
    ("seccomp", lambda o: _spec(o)["securityContext"].pop("seccompProfile")),
    ("seccomp", _any_seccomp),
    ("no_token", lambda o: _spec(o).pop("automountServiceAccountToken")),
    ("no_token", lambda o: _kind(o, "ServiceAccount").pop("automountServiceAccountToken")),
    ("network_policy", lambda o: _remove(o, "NetworkPolicy")),
    ("network_policy", _open_to_all),
    ("network_policy", lambda o: _kind(o, "NetworkPolicy")["spec"]["policyTypes"].remove("Egress")),
    ("network_policy", lambda o: _open_port(o, {"port": 50063})),
    ("network_policy", lambda o: _open_port(o, {"port": 1024, "endPort": 65535})),
    ("limits", lambda o: _container(o)["resources"].pop("limits")),
    ("limits", lambda o: _spec(o)["initContainers"][0]["resources"]["requests"].pop("memory")),
    ("probes", lambda o: _container(o).pop("readinessProbe")),
    ("probes", lambda o: _container(o).update(livenessProbe=_container(o)["readinessProbe"])),
    ("probes", lambda o: _container(o).update(readinessProbe={"tcpSocket": {"port": 50051}})),
    ("probes", lambda o: _container(o)["readinessProbe"]["grpc"].update(port=50061)),
    ("pre_stop", lambda o: _container(o).pop("lifecycle")),
    ("pre_stop", lambda o: _spec(o)["initContainers"][0].pop("restartPolicy")),
    ("grace", lambda o: _spec(o).pop("terminationGracePeriodSeconds")),
    ("grace", _drain_longer),
    ("disruption_budget", lambda o: _remove(o, "PodDisruptionBudget")),
    ("disruption_budget", _wide_budget),
    ("metrics_are_private", _metrics_on_service),
    ("metrics_are_private", lambda o: o.append({"kind": "Ingress", "metadata": {"name": "x"}})),
    ("no_escalation", lambda o: _container(o)["securityContext"].pop("allowPrivilegeEscalation")),
    ("no_escalation", lambda o: _container(o)["securityContext"].update(privileged=True)),
    ("nothing_of_the_host", lambda o: _spec(o).update(hostNetwork=True)),
    ("nothing_of_the_host", _host_path),
    ("fixed_images", lambda o: _container(o).update(image="ringfill/ringfilld:latest")),
    ("fixed_images", lambda o: _container(o).update(image="ringfill/ringfilld")),
)


class Security(unittest.TestCase):
    def test_every_rendering(self):
        versions = (chart.KUBERNETES[0], chart.NEWEST)
        jobs = [(name, version) for name in chart.value_sets() for version in versions
                if version in chart.versions(name)]
        for (name, version), objects in chart.render_all(jobs).items():
            for check in security.CHECKS:
                with self.subTest(values=name, version=version, check=check.__name__):
                    complaints = list(check(objects))
                    if check.__name__ in WAIVED.get(name, ()):
                        self.assertNotEqual(complaints, [], "nothing to waive")
                    else:
                        self.assertEqual(complaints, [])

    def test_none_is_missing(self):
        self.assertEqual(sorted(check.__name__ for check in security.CHECKS), sorted(WANTED | MORE))
        self.assertEqual(len(WANTED), 12)


class Checks(unittest.TestCase):
    """The checks themselves."""

    def test_each_finds_what_it_is_for(self):
        objects = chart.render("cpu")
        for number, (name, break_it) in enumerate(BREAKS):
            with self.subTest(check=name, number=number):
                broken = copy.deepcopy(objects)
                break_it(broken)
                self.assertNotEqual(list(getattr(security, name)(broken)), [], "not found")
        self.assertEqual({name for name, _ in BREAKS}, {check.__name__ for check in security.CHECKS})

    def test_ranks_outlive_the_drain(self):
        broken = chart.render("multinode")
        group = _kind(broken, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
        self.assertEqual(list(security.pre_stop(broken)), [])
        rank = group["workerTemplate"]["spec"]["containers"][0]
        rank["lifecycle"]["preStop"] = {"sleep": {"seconds": 10}}
        self.assertNotEqual(list(security.pre_stop(broken)), [])

    def test_pods_of_a_group_are_seen(self):
        broken = chart.render("multinode")
        group = _kind(broken, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
        del group["workerTemplate"]["spec"]["containers"][0]["resources"]
        self.assertNotEqual(list(security.limits(broken)), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
