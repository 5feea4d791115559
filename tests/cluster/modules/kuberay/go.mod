module cluster

go 1.25.0

require github.com/ray-project/kuberay/ray-operator v1.6.2
