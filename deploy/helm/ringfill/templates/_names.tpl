{{- define "ringfill.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "ringfill.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else if contains (include "ringfill.name" .) .Release.Name }}
{{- .Release.Name | replace "." "-" | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "ringfill.name" .) | replace "." "-" | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* What selects pods of this release; never changes. */}}
{{- define "ringfill.selector" -}}
app.kubernetes.io/name: {{ include "ringfill.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Daemons and ranks, without the pod of `helm test`. */}}
{{- define "ringfill.serverSelector" -}}
matchLabels:
  {{- include "ringfill.selector" . | nindent 2 }}
matchExpressions:
  - {key: app.kubernetes.io/component, operator: In, values: [daemon, rank]}
{{- end }}

{{- define "ringfill.labels" -}}
{{ include "ringfill.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "ringfill.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "ringfill.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* The dict of an image and the tag where it names none. */}}
{{- define "ringfill.image" -}}
{{- $image := index . 0 }}
{{- if $image.digest }}
{{- printf "%s@%s" $image.repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $image.repository (default (index . 1) $image.tag) }}
{{- end }}
{{- end }}

{{/* HOST:PORT of a listener on the pod's address. */}}
{{- define "ringfill.listen" -}}
{{- $host := (index . 0).Values.listenAddress }}
{{- if contains ":" $host }}{{ printf "[%s]:%d" $host (int (index . 1)) }}
{{- else }}{{ printf "%s:%d" $host (int (index . 1)) }}
{{- end }}
{{- end }}

{{/* "true" where the cluster is at least of that version. */}}
{{- define "ringfill.kubeAtLeast" -}}
{{- if semverCompare (printf ">=%s-0" (index . 1)) (index . 0).Capabilities.KubeVersion.Version }}true{{ end }}
{{- end }}
