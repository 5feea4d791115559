{{/*
SPDX-FileCopyrightText: 2026 The cotenant authors
SPDX-License-Identifier: Apache-2.0

Names, labels and images. The templates use a small part of the template language, which cotenant renders itself if
there is no helm: see docs/decisions/0027-the-chart-is-the-installation.md.
*/}}

{{- define "cotenant.labels" -}}
app.kubernetes.io/part-of: cotenant
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}

{{- /* Why a version cannot follow the one that is installed; nothing if it can. A patch can, and so can the next minor
release, the one before, and the first of the next major one. cotenant itself asks here as well. */}}
{{- define "cotenant.upgradeObstacle" -}}
{{- $old := split "." .installed -}}
{{- $new := split "." .new -}}
{{- $majors := printf "%d" (sub $new._0 $old._0) -}}
{{- $minors := printf "%d" (sub $new._1 $old._1) -}}
{{- $first := or (and (eq $majors "1") (eq $new._1 "0")) (and (eq $majors "-1") (eq $old._1 "0")) -}}
{{- if not (or $first (and (eq $majors "0") (has $minors (list "-1" "0" "1")))) -}}
{{- printf "cotenant %s is installed, and %s is more than one minor release away from it: install the releases between them first, one after the other; nothing was changed" .installed .new -}}
{{- end -}}
{{- end }}

{{- define "cotenant.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- printf "%s/cotenant-scheduler:%s" .Values.image.registry $tag -}}
{{- end }}

{{- define "cotenant.agentImage" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- .Values.agent.image | default (printf "%s/cotenant-agent:%s" .Values.image.registry $tag) -}}
{{- end }}

{{- /* The version of kube-scheduler follows the cluster's, without what a vendor appends to it. */}}
{{- define "cotenant.kubeSchedulerImage" -}}
{{- $version := regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version -}}
{{- printf "%s:%s" .Values.kubeScheduler.image (.Values.kubeScheduler.tag | default $version) -}}
{{- end }}

{{- /* What pods are made from, so that other settings make new pods. */}}
{{- define "cotenant.content" -}}
{{- toJson .Values.settings | sha256sum | trunc 16 -}}
{{- end }}

{{- /* Not empty if agents give GPUs to containers by CDI; the webhook must then know it, too. */ -}}
{{- define "cotenant.cdi" -}}
{{- if or .Values.agent.strict .Values.mps.enabled -}}yes{{- end -}}
{{- end }}

{{- define "cotenant.runtimeClass" -}}
{{- $shared := dig "webhook" "runtime-class" "" .Values.settings -}}
{{- .Values.agent.runtimeClassName | default $shared -}}
{{- end }}

{{- define "cotenant.pullSecrets" -}}
{{- $found := list -}}
{{- range $name := .Values.image.pullSecrets -}}
{{- $found = append $found (dict "name" $name) -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{- define "cotenant.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* A hook: Argo CD and Flux run it too. What it leaves is deleted before it runs again. */}}
{{- define "cotenant.hook" -}}
helm.sh/hook: {{ . }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- /* When helm prints the log of a hook. Never if the cluster has Flux: its helm-controller panics at this annotation
(https://github.com/fluxcd/helm-controller/issues/1562), and the hook would never be done. */}}
{{- define "cotenant.hookLog" -}}
{{- if not (.root.Capabilities.APIVersions.Has "helm.toolkit.fluxcd.io/v2") -}}
helm.sh/hook-output-log-policy: {{ .when }}
{{- end }}
{{- end }}

{{- /* How pods of the scheduler are replaced. A new one is ready before an old one ends, so that there is always one that
answers, unless both would need a volume that only one node can have. */}}
{{- define "cotenant.schedulerStrategy" -}}
{{- if and (or .persistent .existingClaim) (not (has "ReadWriteMany" (.accessModes | default list))) -}}
{type: Recreate}
{{- else -}}
{type: RollingUpdate, rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
{{- end -}}
{{- end }}
