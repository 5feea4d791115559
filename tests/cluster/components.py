# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How each program of a cluster is called: its settings, written as files, and its command line.

Clients of the API server authenticate with tokens from one list, not with certificates. The server's own certificate is
self-signed. All addresses exist only in the cluster's network namespaces, so that clusters do not conflict.
"""

import json
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.binaries import CONTAINERD_VERSION, Binaries
from tests.cluster.images import PAUSE

Json = dict[str, Any]

SERVER = "10.88.0.10"
SERVICES = "10.96.0.0/16"
FIRST_SERVICE = "10.96.0.1"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
STATIC_PODS = "static"
"""in a machine's folder: what is written there, kubelet runs unasked"""
USERS = {
    "admin": ("admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    **{f"node{number}": (f"system:node:node{number}", "system:nodes") for number in (1, 2, 3)},
}
"""the user and group of each file of credentials"""


def node_address(number: int) -> str:
    return f"10.88.0.{9 + number}"


def pod_range(number: int) -> str:
    return f"10.244.{number}.0/24"


def write_credentials(folder: Path) -> None:
    """Everybody's token, for the server to know, its certificate, and the key that it signs service accounts with."""
    folder.mkdir(parents=True)
    tokens = {name: secrets.token_hex(16) for name in USERS}
    rows = [f'{tokens[name]},{user},{name},"{group}"\n' for name, (user, group) in USERS.items()]
    (folder / "tokens.csv").write_text("".join(rows))
    for name, token in tokens.items():
        write_kubeconfig(folder, name, token)
    _openssl("genrsa", "-out", str(folder / "accounts.key"), "2048")
    # The server would write one itself, beside the programs that read it once when they start: perhaps half of it.
    key, certificate = str(folder / "apiserver.key"), str(folder / "apiserver.crt")
    names = f"subjectAltName=DNS:kubernetes.default.svc,IP:{SERVER},IP:{FIRST_SERVICE}"
    made = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30")
    _openssl(*made, "-subj", "/CN=kube-apiserver", "-addext", names, "-keyout", key, "-out", certificate)


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def write_kubeconfig(folder: Path, name: str, token: str) -> None:
    """The credentials of whoever has the token."""
    server = {"server": f"https://{SERVER}", "certificate-authority": str(folder / "apiserver.crt")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "cluster",
        "clusters": [{"name": "cluster", "cluster": server}],
        "users": [{"name": "me", "user": {"token": token}}],
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "me"}}],
    }
    (folder / f"{name}.kubeconfig").write_text(json.dumps(config))


def control_plane(
    folder: Path, credentials: Path, scheduler: Mapping[str, Any], grace: str, server: Sequence[str]
) -> dict[str, list[str]]:
    """The commands of the control plane; `scheduler` goes into the scheduler's configuration, and `server` are further
    options of the API server.

    `grace` is how long a node may be silent before it counts as lost.
    """
    (folder / "scheduler.json").write_text(
        json.dumps(
            {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "clientConnection": {"kubeconfig": str(credentials / "scheduler.kubeconfig")},
                "leaderElection": {"leaderElect": False},
                "podInitialBackoffSeconds": 1,
                "podMaxBackoffSeconds": 2,
                **scheduler,
            }
        )
    )
    accounts = str(credentials / "accounts.key")
    etcd, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    return {
        "etcd": [
            "etcd",
            "--data-dir=/var/lib/etcd",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peers}",
            "--log-level=warn",
        ],
        "kube-apiserver": [
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            "--secure-port=443",
            f"--advertise-address={SERVER}",
            f"--cert-dir={credentials}",
            f"--service-cluster-ip-range={SERVICES}",
            f"--token-auth-file={credentials / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={accounts}",
            f"--service-account-signing-key-file={accounts}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--enable-aggregator-routing=true",  # a webhook may be a Service, although nothing serves their addresses
            "--kubelet-preferred-address-types=InternalIP",
            *server,
        ],
        "kube-controller-manager": [
            "kube-controller-manager",
            f"--kubeconfig={credentials / 'controllers.kubeconfig'}",
            f"--root-ca-file={credentials / 'apiserver.crt'}",
            f"--service-account-private-key-file={accounts}",
            f"--cert-dir={folder / 'controllers'}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            f"--node-monitor-grace-period={grace}",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        ],
        "kube-scheduler": [
            "kube-scheduler",
            f"--config={folder / 'scheduler.json'}",
            f"--cert-dir={folder / 'scheduler'}",
        ],
        "door": [
            "kubectl",
            "proxy",
            f"--kubeconfig={credentials / 'admin.kubeconfig'}",
            f"--unix-socket={folder / 'api.sock'}",
        ],
    }


def node(
    number: int,
    folder: Path,
    credentials: Path,
    cgroup: str,
    binaries: Binaries,
    runtime: Path,
    kubelet: Mapping[str, Any],
) -> dict[str, list[str]]:
    """The commands of a node: containerd, which calls `runtime` to run containers, and kubelet, with these settings."""
    network, static = folder / "network.d", folder / STATIC_PODS
    network.mkdir()
    static.mkdir()
    (network / "10-pods.conflist").write_text(json.dumps(_pod_network(folder, number)))
    (folder / "containerd.toml").write_text(_containerd(network, binaries, runtime))
    (folder / "kubelet.json").write_text(json.dumps({**_kubelet(cgroup, static), **kubelet}))
    return {
        "containerd": ["containerd", "--config", str(folder / "containerd.toml")],
        "kubelet": [
            "kubelet",
            f"--config={folder / 'kubelet.json'}",
            f"--kubeconfig={credentials / f'node{number}.kubeconfig'}",
            f"--cert-dir={folder / 'serving'}",
            f"--hostname-override=node{number}",
            f"--node-ip={node_address(number)}",
        ],
    }


def _pod_network(folder: Path, number: int) -> Json:
    addresses = {
        "type": "host-local",
        "dataDir": str(folder / "addresses"),
        "ranges": [[{"subnet": pod_range(number)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True, "ipam": addresses}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}


def _containerd(network: Path, binaries: Binaries, runtime: Path) -> str:
    """The configuration of containerd, whose version 1 has all of it in one plugin."""
    if CONTAINERD_VERSION.startswith("1."):
        images = runtimes = "io.containerd.grpc.v1.cri"
        version, pause, programs = 2, f'sandbox_image = "{PAUSE}"', f'bin_dir = "{binaries.network}"'
    else:
        images, runtimes = "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"
        version, pause, programs = 3, f'pinned_images.sandbox = "{PAUSE}"', f'bin_dirs = ["{binaries.network}"]'
    own = f"[plugins.'{images}']\n  {pause}\n" + (f"[plugins.'{runtimes}']\n" if runtimes != images else "")
    return f"""
version = {version}
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[grpc]
  address = "{CONTAINERD_SOCKET}"
{own}
  restrict_oom_score_adj = true  # root in a container may not lower it, and no container would start
  enable_cdi = true
  cdi_spec_dirs = ["/run/cdi"]
  [plugins.'{runtimes}'.cni]
    {programs}
    conf_dir = "{network}"
  [plugins.'{runtimes}'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'{runtimes}'.containerd.runtimes.runc.options]
      BinaryName = "{runtime}"
"""


def _kubelet(cgroup: str, static: Path) -> Json:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "staticPodPath": str(static),
        "fileCheckFrequency": "1s",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "resolvConf": "",
        "makeIPTablesUtilChains": False,
        # The machine's disk and memory are not the cluster's: a full disk is no reason to evict.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "syncFrequency": "5s",
        "nodeStatusUpdateFrequency": "2s",
        "featureGates": {"KubeletCrashLoopBackOffMax": True},
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},  # tests kill programs, and do not wait for minutes
        "maxPods": 200,
    }
