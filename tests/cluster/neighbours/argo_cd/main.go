// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0

// An application of Argo CD without Argo CD's controller: this program calls the engine as the controller does. `compare`
// says which objects differ from a file of manifests; `sync` runs hooks, applies and prunes until the cluster is as the
// file says. Both print one line of JSON.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/argoproj/argo-cd/gitops-engine/pkg/cache"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/diff"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/sync"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/sync/common"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/utils/kube"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/utils/tracing"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2/textlogger"
)

const (
	tracking = "argocd.argoproj.io/tracking-id"
	manager  = "argocd-controller"
	pause    = time.Second
)

var log = textlogger.NewLogger(textlogger.NewConfig())

type application struct {
	config    *rest.Config
	cluster   cache.ClusterCache
	kubectl   kube.Kubectl
	file      string
	namespace string
}

type answer struct {
	Phase     common.OperationPhase `json:"phase,omitempty"`
	Message   string                `json:"message,omitempty"`
	Different []string              `json:"different"`
	Results   map[string]string     `json:"results,omitempty"`
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: argo-cd compare|sync NAMESPACE FILE, with KUBECONFIG")
		os.Exit(2)
	}
	found, err := run(os.Args[1], os.Args[2], os.Args[3])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(found)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(command, namespace, file string) (*answer, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 50, 100
	app := application{
		config:    config,
		kubectl:   &kube.KubectlCmd{Log: log, Tracer: tracing.NopTracer{}},
		file:      file,
		namespace: namespace,
		cluster: cache.NewClusterCache(config, cache.SetLogr(log), cache.SetPopulateResourceInfoHandler(
			func(object *unstructured.Unstructured, _ bool) (any, bool) {
				id := object.GetAnnotations()[tracking]
				return id, id != ""
			},
		)),
	}
	if err := app.cluster.EnsureSynced(); err != nil {
		return nil, err
	}
	switch command {
	case "compare":
		return app.compare()
	case "sync":
		return app.sync()
	}
	return nil, errors.New("neither compare nor sync")
}

// reconciled pairs the objects of the file with those of the cluster.
func (app *application) reconciled() (*sync.ReconciliationResult, error) {
	text, err := os.ReadFile(app.file)
	if err != nil {
		return nil, err
	}
	targets, err := kube.SplitYAML(text)
	if err != nil {
		return nil, err
	}
	for _, target := range targets {
		notes := target.GetAnnotations()
		if notes == nil {
			notes = map[string]string{}
		}
		notes[tracking] = "cotenant:" + name(target)
		target.SetAnnotations(notes)
	}
	live, err := app.cluster.GetManagedLiveObjs(targets, func(found *cache.Resource) bool { return found.Info != "" })
	if err != nil {
		return nil, err
	}
	result := sync.Reconcile(targets, live, app.namespace, app.cluster)
	return &result, nil
}

// compare compares three states, and what the API server would make of the objects, which `ServerSideDiff=true` selects.
func (app *application) compare() (*answer, error) {
	applier, cleanup, err := app.kubectl.ManageServerSideDiffDryRuns(app.config)
	if err != nil {
		return nil, err
	}
	defer cleanup()
	server := []diff.Option{
		diff.WithServerSideDiff(true),
		diff.WithServerSideDryRunner(diff.NewK8sServerSideDryRunner(applier)),
		diff.WithGVKParser(app.cluster.GetGVKParser()),
		diff.WithManager(manager),
	}
	found := answer{Different: []string{}}
	for way, options := range map[string][]diff.Option{"": {}, " by server": server} {
		result, err := app.reconciled()
		if err != nil {
			return nil, err
		}
		differences, err := diff.DiffArray(result.Target, result.Live, append(options, diff.WithLogr(log))...)
		if err != nil {
			return nil, err
		}
		for i, one := range differences.Diffs {
			if one.Modified {
				found.Different = append(found.Different, name(either(result.Target[i], result.Live[i]))+way)
			}
		}
	}
	sort.Strings(found.Different)
	return &found, nil
}

// sync makes steps until all is done. Each begins with the cluster as it is by then, and with the results so far.
func (app *application) sync() (*answer, error) {
	phase, message, results := common.OperationRunning, "", []common.ResourceSyncResult{}
	for begun := meta.Now(); !phase.Completed(); time.Sleep(pause) {
		result, err := app.reconciled()
		if err != nil {
			return nil, err
		}
		step, cleanup, err := sync.NewSyncContext(
			"", *result, app.config, app.config, app.kubectl, app.namespace,
			sync.WithInitialState(phase, message, results, begun), sync.WithPrune(true), sync.WithLogr(log),
		)
		if err != nil {
			return nil, err
		}
		step.Sync()
		phase, message, results = step.GetState()
		cleanup()
	}
	found := answer{Phase: phase, Message: message, Results: map[string]string{}}
	for _, one := range results {
		found.Results[one.ResourceKey.Kind+"/"+one.ResourceKey.Name] = one.Message
	}
	return &found, nil
}

func either(target, live *unstructured.Unstructured) *unstructured.Unstructured {
	if target == nil {
		return live
	}
	return target
}

func name(object *unstructured.Unstructured) string {
	return object.GetKind() + "/" + object.GetName()
}
