module cluster

go 1.26.0

require sigs.k8s.io/kueue v0.19.2

require sigs.k8s.io/jobset v0.12.0

require github.com/kubeflow/trainer/v2 v2.2.1
