{{/*
SPDX-FileCopyrightText: 2026 The cotenant authors
SPDX-License-Identifier: Apache-2.0

What the pods of the scheduler, the webhook and the pages have in common. Each template gets a dict with the name of the
part, its values and the root.
*/}}

{{- define "cotenant.deployment" -}}
replicas: {{ .replicas }}
selector:
  matchLabels: {app.kubernetes.io/name: {{ .name }}}
{{- end }}

{{- define "cotenant.podMetadata" -}}
labels:
  app.kubernetes.io/name: {{ .name }}
  app.kubernetes.io/part-of: cotenant
  {{- range $key, $value := .values.podLabels }}
  {{- if has $key (list "app.kubernetes.io/name" "app.kubernetes.io/part-of") }}
  {{- fail (printf "podLabels: the label %s of %s is cotenant's own, by which its pods are found: choose another one" $key $.name) }}
  {{- end }}
  {{ $key | quote }}: {{ $value | quote }}
  {{- end }}
annotations:
  cotenant.io/configuration: {{ include "cotenant.content" .root | quote }}
  {{- range $key, $value := .values.podAnnotations }}
  {{- if regexFind "^(cotenant|prometheus)[.]io/" $key }}
  {{- fail (printf "podAnnotations: the annotation %s of %s is among those that the chart sets itself: choose another one" $key $.name) }}
  {{- end }}
  {{ $key | quote }}: {{ $value | quote }}
  {{- end }}
{{- end }}

{{- define "cotenant.podSpec" -}}
serviceAccountName: {{ .name }}
{{- if .values.priorityClassName }}
priorityClassName: {{ .values.priorityClassName }}
{{- end }}
imagePullSecrets: {{ include "cotenant.pullSecrets" .root }}
nodeSelector: {{ .values.nodeSelector | default dict | toJson }}
tolerations: {{ .values.tolerations | default list | toJson }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {app.kubernetes.io/name: {{ .name }}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65534
  runAsGroup: 65534
  fsGroup: 65534
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "cotenant.served" -}}
image: {{ .values.image | default (include "cotenant.image" .root) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- include "cotenant.confined" . | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
env:
  - name: COTENANT_NAMESPACE
    valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
ports:
  - {name: https, containerPort: 8443}
livenessProbe:
  httpGet: {path: /healthz, port: 8443, scheme: HTTPS}
  initialDelaySeconds: 10
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: 8443, scheme: HTTPS}
  periodSeconds: 2
  timeoutSeconds: 5
resources: {{ toJson .values.resources }}
{{- end }}

{{- define "cotenant.volume" -}}
{{- if or .volume.persistent .volume.existingClaim -}}
persistentVolumeClaim: {claimName: {{ .volume.existingClaim | default .name | quote }}}
{{- else -}}
emptyDir: {sizeLimit: {{ .volume.size | quote }}}
{{- end -}}
{{- end }}

{{- define "cotenant.claim" -}}
{{- if and .volume.persistent (not .volume.existingClaim) }}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "cotenant.labels" .root | nindent 4 }}
spec:
  accessModes: {{ .volume.accessModes | default (list "ReadWriteOnce") | toJson }}
  resources: {requests: {storage: {{ .volume.size | quote }}}}
  {{- if .volume.storageClass }}
  storageClassName: {{ .volume.storageClass }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* How long the job of a hook stays after its end. A job cannot be changed, so tools that know no hooks can apply
another version of it only if the last one is gone. */}}
{{- define "cotenant.jobSeconds" -}}120{{- end }}

{{- /* The pod and the container of a hook: least rights, no root, a folder for temporary files. */}}
{{- define "cotenant.jobPod" -}}
serviceAccountName: {{ .account }}
restartPolicy: Never
imagePullSecrets: {{ include "cotenant.pullSecrets" .root }}
nodeSelector: {{ .root.Values.scheduler.nodeSelector | default dict | toJson }}
tolerations: {{ .root.Values.scheduler.tolerations | default list | toJson }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65534
  runAsGroup: 65534
  seccompProfile: {type: RuntimeDefault}
volumes:
  - {name: scratch, emptyDir: {sizeLimit: 16Mi}}
{{- end }}

{{- define "cotenant.jobContainer" -}}
image: {{ .Values.scheduler.image | default (include "cotenant.image" .) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  - name: COTENANT_NAMESPACE
    valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  {{- include "cotenant.confined" . | nindent 2 }}
resources: {requests: {cpu: 50m, memory: 128Mi}}
volumeMounts:
  - {name: scratch, mountPath: /tmp}
{{- end }}
