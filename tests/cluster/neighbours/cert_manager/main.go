// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0

// The controllers and the CA injector of cert-manager. Its own commands are modules that are not published, so this
// program starts its packages as they do: `controller` issues certificates by CA and by self-signed issuers, `cainjector`
// writes the CAs into webhook configurations.
package main

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/cert-manager/cert-manager/pkg/api"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
	"github.com/cert-manager/cert-manager/pkg/util"
)

const workers = 2

func main() {
	commands := map[string]func(context.Context) error{"controller": control, "cainjector": inject}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: cert-manager controller|cainjector")
		os.Exit(2)
	}
	if err := commands[os.Args[1]](ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func control(ctx context.Context) error {
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		KubernetesAPIQPS:   20,
		KubernetesAPIBurst: 50,
		IssuerOptions:      controller.IssuerOptions{ClusterResourceNamespace: os.Getenv("POD_NAMESPACE")},
	})
	if err != nil {
		return err
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for name, construct := range controller.Known() {
		made, err := construct(factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		group.Go(func() error { return made.Run(workers, ctx) })
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	shared.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())
	return group.Wait()
}

func inject(ctx context.Context) error {
	scheme := runtime.NewScheme()
	utilruntime.Must(core.AddToScheme(scheme))
	utilruntime.Must(admissionregistration.AddToScheme(scheme))
	utilruntime.Must(api.AddToScheme(scheme))
	configuration, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	// What applies objects is named by the first part of its user agent, and must have a name.
	configuration = util.RestConfigWithUserAgent(configuration, "cainjector")
	ctrl.SetLogger(klog.Background())
	manager, err := ctrl.NewManager(configuration, ctrl.Options{
		Scheme:  scheme,
		Metrics: server.Options{BindAddress: "0"},
		Client:  client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&core.Secret{}}}},
	})
	if err != nil {
		return err
	}
	err = cainjector.RegisterAllInjectors(ctx, manager, cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor:        map[string]bool{cainjector.MutatingWebhookConfigurationName: true},
	})
	if err != nil {
		return err
	}
	return manager.Start(ctx)
}
