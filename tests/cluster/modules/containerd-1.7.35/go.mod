module cluster

go 1.25.0

require github.com/containerd/containerd v1.7.35
