{{- define "ringfill.modelClaim" -}}
{{- $storage := .Values.model.download.storage }}
accessModes: [ReadWriteOnce]
{{- with $storage.storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ $storage.size }}
{{- end }}

{{/* "true" where each pod of the StatefulSet has a claim that outlives it. */}}
{{- define "ringfill.modelClaimTemplate" -}}
{{- if and (eq .Values.model.source "download") (eq .Values.model.download.storage.type "claim") (not .Values.multinode.enabled) }}true{{ end }}
{{- end }}

{{- define "ringfill.modelVolume" -}}
{{- $model := .Values.model }}
{{- if eq $model.source "pvc" }}
- name: model
  persistentVolumeClaim:
    claimName: {{ $model.pvc.claimName }}
    readOnly: true
{{- else if eq $model.source "image" }}
- name: model
  image:
    reference: {{ $model.image.reference | quote }}
    pullPolicy: {{ $model.image.pullPolicy }}
{{- else if eq $model.download.storage.type "emptyDir" }}
- name: model
  emptyDir: {sizeLimit: {{ $model.download.storage.size }}}
{{- else if .Values.multinode.enabled }}
- name: model
  ephemeral:
    volumeClaimTemplate:
      spec:
        {{- include "ringfill.modelClaim" . | trim | nindent 8 }}
{{- end }}
{{- if and (eq $model.source "download") $model.download.headerSecret.name }}
- name: model-header
  secret:
    secretName: {{ $model.download.headerSecret.name }}
    defaultMode: 0440
    items: [{key: {{ $model.download.headerSecret.key | quote }}, path: header}]
{{- end }}
{{- end }}

{{/* Fetches the model, checks it, and only then gives it its name; a file that is there is only checked. */}}
{{- define "ringfill.downloadContainer" -}}
{{- $download := .Values.model.download }}
- name: model
  image: {{ include "ringfill.image" (list $download.image "") | quote }}
  imagePullPolicy: {{ $download.image.pullPolicy }}
  command: [sh, -euc]
  args:
    - |
      {{- .Files.Get "files/download.sh" | nindent 6 }}
  env:
    - {name: MODEL_URL, value: {{ $download.url | quote }}}
    - {name: MODEL_SHA256, value: {{ $download.sha256 | quote }}}
    - {name: MODEL_FILE, value: {{ include "ringfill.modelPath" . | quote }}}
    - {name: MODEL_HEADER, value: {{ ternary "/etc/model-header/header" "" (ne $download.headerSecret.name "") | quote }}}
  securityContext:
    {{- toYaml .Values.containerSecurityContext | nindent 4 }}
  resources:
    {{- toYaml $download.resources | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - {name: model, mountPath: /models}
    {{- if $download.headerSecret.name }}
    - {name: model-header, mountPath: /etc/model-header, readOnly: true}
    {{- end }}
{{- end }}
