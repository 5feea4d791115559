{{/*
SPDX-FileCopyrightText: 2026 The cotenant authors
SPDX-License-Identifier: Apache-2.0

What follows from the settings, for admission rules and for the configuration of kube-scheduler. A test compares each of
these with what cotenant itself makes of the same settings. The defaults are in files/names.yaml, which is generated.
*/}}

{{- /* The names of the resources of a dialect: those of the settings, or else the dialect's own. */}}
{{- define "cotenant.dialects" -}}
{{- $names := .Files.Get "files/names.yaml" | fromYaml -}}
{{- $chosen := dig "dialects" (dict) .Values.settings -}}
{{- $found := dict -}}
{{- range $dialect, $own := $names.dialects -}}
{{- if or (not (hasKey $chosen $dialect)) (kindIs "map" (get $chosen $dialect)) -}}
{{- $said := get $chosen $dialect | default (dict) -}}
{{- $resources := $own.fixed -}}
{{- $handedOut := $own.slots -}}
{{- range $key, $name := $own.names -}}
{{- $resource := dig $key "" $said | default $name -}}
{{- $resources = append $resources $resource -}}
{{- if and (eq $key "count") (not $handedOut) -}}
{{- $handedOut = $resource -}}
{{- end -}}
{{- end -}}
{{- range $key := $own.optional -}}
{{- if dig $key "" $said -}}
{{- $resources = append $resources (get $said $key) -}}
{{- end -}}
{{- end -}}
{{- $found = merge $found (dict $dialect (dict "resources" $resources "handedOut" $handedOut "count" (dig "count" "" $said | default $own.names.count))) -}}
{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end }}

{{- define "cotenant.resources" -}}
{{- $found := list -}}
{{- range $dialect := include "cotenant.dialects" . | fromYaml -}}
{{- $found = concat $found $dialect.resources -}}
{{- end -}}
{{- $found | sortAlpha | toJson -}}
{{- end }}

{{- /* The resources by which pods request devices of our classes, besides those of dialects. */}}
{{- define "cotenant.classResources" -}}
{{- $names := .Files.Get "files/names.yaml" | fromYaml -}}
{{- $ofDialects := include "cotenant.resources" . | fromYamlArray -}}
{{- $found := list -}}
{{- if dig "claims" "enabled" false .Values.settings -}}
{{- $found = $names.classResources -}}
{{- range $resource := dig "claims" "extended-resources" (dict) .Values.settings -}}
{{- if not (has $resource $ofDialects) -}}
{{- $found = append $found $resource -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $found | sortAlpha | toJson -}}
{{- end }}

{{- /* The resources that device classes state, by class. Kubernetes before 1.36 does not keep them. */}}
{{- define "cotenant.mappedResources" -}}
{{- $version := regexFind "^v1\\.[0-9]+" .Capabilities.KubeVersion.Version -}}
{{- if has $version (list "v1.34" "v1.35") -}}
{}
{{- else -}}
{{- dig "claims" "extended-resources" (dict) .Values.settings | toJson -}}
{{- end -}}
{{- end }}

{{- define "cotenant.managedResources" -}}
{{- $dialects := include "cotenant.dialects" . | fromYaml -}}
{{- $devices := list -}}
{{- $names := list -}}
{{- range $dialect := $dialects -}}
{{- $devices = append $devices $dialect.handedOut -}}
{{- $names = concat $names $dialect.resources -}}
{{- end -}}
{{- $found := list -}}
{{- range $name := sortAlpha $names -}}
{{- $found = append $found (dict "name" $name "ignoredByScheduler" (not (has $name $devices))) -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{- /* Not empty if a kube-scheduler with our extender places pods; otherwise pods get GPUs by claims only. */}}
{{- define "cotenant.extender" -}}
{{- $only := dig "claims" "only" false .Values.settings -}}
{{- if or (not $only) (dig "claims" "extender" false .Values.settings) -}}yes{{- end -}}
{{- end }}

{{- define "cotenant.schedulerName" -}}
{{- $names := .Files.Get "files/names.yaml" | fromYaml -}}
{{- dig "scheduler" "name" $names.schedulerName .Values.settings | toJson -}}
{{- end }}

{{- define "cotenant.ourSchedulers" -}}
{{- $names := .Files.Get "files/names.yaml" | fromYaml -}}
{{- $name := dig "scheduler" "name" $names.schedulerName .Values.settings -}}
{{- $replaced := dig "scheduler" "replaces" $names.replacedSchedulers .Values.settings -}}
{{- concat (list "" "default-scheduler" $name) $replaced | toJson -}}
{{- end }}

{{- define "cotenant.kaiSchedulers" -}}
{{- $names := .Files.Get "files/names.yaml" | fromYaml -}}
{{- list $names.kai (dig "scheduler" "name" $names.schedulerName .Values.settings) | toJson -}}
{{- end }}

{{- /* The beginning of the names of MIG instances: the domain is that of the resource for GPUs. */}}
{{- define "cotenant.migPrefix" -}}
{{- $vgpu := get (include "cotenant.dialects" . | fromYaml) "vgpu" -}}
{{- if $vgpu -}}
{{- printf "%s/mig-" (regexFind "^[^/]*" $vgpu.count) | toJson -}}
{{- end -}}
{{- end }}

{{- define "cotenant.labelSelector" -}}
{{- $names := .Files.Get "files/names.yaml" | fromYaml -}}
{{- $found := list -}}
{{- range $label := without (dig "webhook" "skip-labels" $names.skipLabels .Values.settings) "" -}}
{{- $key := regexFind "^[^=]*" $label -}}
{{- if eq $key $label -}}
{{- $found = append $found (dict "key" $key "operator" "DoesNotExist") -}}
{{- else -}}
{{- $found = append $found (dict "key" $key "operator" "NotIn" "values" (list (regexFind "[^=]*$" $label))) -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{- define "cotenant.namespaceSelector" -}}
{{- $names := .Files.Get "files/names.yaml" | fromYaml -}}
{{- $skipped := dig "webhook" "skip-namespaces" $names.skipNamespaces .Values.settings -}}
{{- $all := append $skipped .Release.Namespace | uniq | sortAlpha -}}
{{- $first := dict "key" "kubernetes.io/metadata.name" "operator" "NotIn" "values" $all -}}
{{- $labels := include "cotenant.labelSelector" . | fromYamlArray -}}
{{- concat (list $first) $labels | toJson -}}
{{- end }}

{{- /* CEL: whether a pod carries one of the labels to skip. */}}
{{- define "cotenant.skips" -}}
{{- $names := .Files.Get "files/names.yaml" | fromYaml -}}
{{- $found := list -}}
{{- range $label := without (dig "webhook" "skip-labels" $names.skipLabels .Values.settings) "" -}}
{{- $key := regexFind "^[^=]*" $label | toJson -}}
{{- if eq (regexFind "^[^=]*" $label) $label -}}
{{- $found = append $found (printf "%s in object.metadata.labels" $key) -}}
{{- else -}}
{{- $found = append $found (printf "%s in object.metadata.labels && object.metadata.labels[%s] == %s" $key $key (regexFind "[^=]*$" $label | toJson)) -}}
{{- end -}}
{{- end -}}
{{- if $found -}}
has(object.metadata.labels) && ({{ join " || " $found }})
{{- else -}}
false
{{- end -}}
{{- end }}
