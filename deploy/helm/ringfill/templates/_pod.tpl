{{/* Sleeps before SIGTERM; clusters before 1.30 have no such action and run the image's sleep. */}}
{{- define "ringfill.preStop" -}}
preStop:
  {{- if include "ringfill.kubeAtLeast" (list (index . 0) "1.30") }}
  sleep:
    seconds: {{ index . 1 }}
  {{- else }}
  exec:
    command: ["sleep", {{ index . 1 | quote }}]
  {{- end }}
{{- end }}

{{/* Seconds for which what the daemon needs outlives it. */}}
{{- define "ringfill.outliveSeconds" -}}
{{- add (int .Values.preStopSeconds) (int (include "ringfill.drainSeconds" .)) 2 }}
{{- end }}

{{- define "ringfill.graceSeconds" -}}
{{- if gt (int .Values.terminationGracePeriodSeconds) 0 }}
{{- int .Values.terminationGracePeriodSeconds }}
{{- else }}
{{- add (int .Values.preStopSeconds) (int (include "ringfill.drainSeconds" .)) 15 }}
{{- end }}
{{- end }}

{{/* A probe: the root, its name, and the health service it asks for. */}}
{{- define "ringfill.probe" -}}
{{- $root := index . 0 }}
{{- $probe := get $root.Values.probes (index . 1) }}
grpc:
  port: {{ ternary (include "ringfill.healthPort" $root) (toString (int $root.Values.service.port)) $root.Values.envoy.enabled }}
  service: {{ index . 2 | quote }}
periodSeconds: {{ int $probe.periodSeconds }}
timeoutSeconds: {{ int $probe.timeoutSeconds }}
failureThreshold: {{ int $probe.failureThreshold }}
{{- end }}

{{/* Resources with GPUs: the root, the resources, the number of GPUs. */}}
{{- define "ringfill.resources" -}}
{{- $root := index . 0 }}
{{- $resources := deepCopy (index . 1) }}
{{- if gt (int (index . 2)) 0 }}
{{- $_ := set $resources.requests $root.Values.gpu.resource (int (index . 2)) }}
{{- $_ := set $resources.limits $root.Values.gpu.resource (int (index . 2)) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{/* What the daemon and ranks have in common: the root, and whether it computes. */}}
{{- define "ringfill.program" -}}
{{- $root := index . 0 }}
{{- $v := $root.Values }}
image: {{ include "ringfill.image" (list $v.image $root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ $v.image.pullPolicy }}
env:
  - name: RINGFILL_CPUS
    valueFrom:
      # Rounded up. The daemon by itself takes a thread for each core of the node.
      resourceFieldRef: {resource: limits.cpu, divisor: "1"}
  {{- if $v.multinode.enabled }}
  - name: RINGFILL_RANK
    valueFrom:
      fieldRef: {fieldPath: "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']"}
  - name: RINGFILL_POD_IP
    valueFrom:
      fieldRef: {fieldPath: status.podIP}
  {{- end }}
  {{- with $v.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext:
  {{- toYaml $v.containerSecurityContext | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  - {name: config, mountPath: /etc/ringfill, readOnly: true}
  - {name: model, mountPath: /models, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  {{- if $v.multinode.enabled }}
  - {name: secret, mountPath: /etc/ringfill-secret, readOnly: true}
  {{- end }}
  {{- if gt (int $v.gpu.count) 0 }}
  - {name: shm, mountPath: /dev/shm}
  {{- end }}
{{- end }}

{{- define "ringfill.daemonContainer" -}}
{{- $v := .Values }}
- name: ringfilld
  command: [ringfilld]
  args:
    - --config
    - /etc/ringfill/ringfill.yaml
    {{- if not (hasKey (default dict $v.config.compute) "threads") }}
    - --set
    - compute.threads=$(RINGFILL_CPUS)
    {{- end }}
  {{- include "ringfill.program" (list .) | trim | nindent 2 }}
  resources:
    {{- if $v.multinode.enabled }}
    {{- toYaml $v.multinode.daemonResources | nindent 4 }}
    {{- else }}
    {{- include "ringfill.resources" (list . $v.resources $v.gpu.count) | trim | nindent 4 }}
    {{- end }}
  {{- if or (not $v.envoy.enabled) $v.multinode.enabled }}
  ports:
    {{- if not $v.envoy.enabled }}
    - {name: grpc, containerPort: {{ $v.service.port }}, protocol: TCP}
    {{- if $v.metrics.enabled }}
    - {name: metrics, containerPort: {{ $v.metrics.port }}, protocol: TCP}
    {{- end }}
    {{- end }}
    {{- if $v.multinode.enabled }}
    - {name: ring, containerPort: {{ $v.multinode.port }}, protocol: TCP}
    {{- end }}
  {{- end }}
  # The port opens when model and ranks are there.
  startupProbe:
    {{- include "ringfill.probe" (list . "startup" "ringfill.v1.Ringfill") | trim | nindent 4 }}
  # No ring, no progress, or draining: no new clients.
  readinessProbe:
    {{- include "ringfill.probe" (list . "readiness" "ringfill.v1.Ringfill") | trim | nindent 4 }}
  # The whole server, over many tries: what repairs itself is left alone. Not asked while it drains.
  livenessProbe:
    {{- include "ringfill.probe" (list . "liveness" "") | trim | nindent 4 }}
  lifecycle:
    {{- include "ringfill.preStop" (list . (int $v.preStopSeconds)) | trim | nindent 4 }}
{{- end }}

{{/*
A rank. It has no port that a probe could ask: the daemon watches it by heartbeats and closes the connection of
one that hangs, whereupon it ends and is started anew. It outlives the daemon's drain, which needs it.
*/}}
{{- define "ringfill.rankContainer" -}}
{{- $v := .Values }}
- name: rank
  command: [ringfilld]
  args:
    - worker
    - --leader
    - $(LWS_LEADER_ADDRESS):{{ $v.multinode.port }}
    - --rank
    - $(RINGFILL_RANK)
    - --listen
    - $(RINGFILL_POD_IP)
    - --secret-file
    - /etc/ringfill-secret/secret
    - --config
    - /etc/ringfill/ringfill.yaml
    {{- if not (hasKey (default dict $v.config.compute) "threads") }}
    - --set
    - compute.threads=$(RINGFILL_CPUS)
    {{- end }}
  {{- include "ringfill.program" (list .) | trim | nindent 2 }}
  resources:
    {{- include "ringfill.resources" (list . $v.resources $v.gpu.count) | trim | nindent 4 }}
  lifecycle:
    {{- include "ringfill.preStop" (list . (include "ringfill.outliveSeconds" .)) | trim | nindent 4 }}
{{- end }}

{{/*
Envoy. As a native sidecar it starts before the daemon and ends after it, so that calls finish while it drains;
clusters before 1.29 have none, and there it sleeps until the daemon is gone.
*/}}
{{- define "ringfill.envoyContainer" -}}
{{- $v := .Values }}
{{- $envoy := $v.envoy }}
{{- $native := include "ringfill.kubeAtLeast" (list . "1.29") }}
- name: envoy
  image: {{ include "ringfill.image" (list $envoy.image "") | quote }}
  imagePullPolicy: {{ $envoy.image.pullPolicy }}
  {{- if $native }}
  restartPolicy: Always
  {{- end }}
  command: [envoy]
  args:
    - --config-path
    - /etc/envoy/envoy.yaml
    - --disable-hot-restart
    - --concurrency
    - {{ $envoy.concurrency | quote }}
    - --log-level
    - {{ $envoy.logLevel }}
  ports:
    - {name: grpc, containerPort: {{ $v.service.port }}, protocol: TCP}
    - {name: health, containerPort: {{ include "ringfill.healthPort" . }}, protocol: TCP}
    {{- if $v.metrics.enabled }}
    - {name: metrics, containerPort: {{ $v.metrics.port }}, protocol: TCP}
    {{- end }}
  startupProbe:
    httpGet: {path: /ready, port: health}
    periodSeconds: 1
    timeoutSeconds: 3
    failureThreshold: 60
  readinessProbe:
    httpGet: {path: /ready, port: health}
    periodSeconds: 5
    timeoutSeconds: 3
    failureThreshold: 2
  # Whether it accepts at all; a restart drops every call.
  livenessProbe:
    tcpSocket: {port: health}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  {{- if not $native }}
  lifecycle:
    {{- include "ringfill.preStop" (list . (include "ringfill.outliveSeconds" .)) | trim | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml $v.containerSecurityContext | nindent 4 }}
  resources:
    {{- toYaml $envoy.resources | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - {name: envoy, mountPath: /etc/envoy, readOnly: true}
{{- end }}

{{/* The pod of a role: daemon, or rank. */}}
{{- define "ringfill.pod" -}}
{{- $root := index . 0 }}
{{- $daemon := eq (index . 1) "daemon" }}
{{- $v := $root.Values }}
{{- $envoy := and $daemon $v.envoy.enabled }}
{{- $native := include "ringfill.kubeAtLeast" (list $root "1.29") }}
metadata:
  labels:
    {{- include "ringfill.labels" $root | trim | nindent 4 }}
    app.kubernetes.io/component: {{ index . 1 }}
    {{- with $v.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: {{ ternary "ringfilld" "rank" $daemon }}
    checksum/config: {{ include "ringfill.configMapData" $root | sha256sum }}
    {{- with $v.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "ringfill.serviceAccountName" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "ringfill.graceSeconds" $root }}
  securityContext:
    {{- toYaml $v.podSecurityContext | nindent 4 }}
  {{- with $v.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- if and (gt (int $v.gpu.count) 0) $v.gpu.runtimeClassName }}
  runtimeClassName: {{ $v.gpu.runtimeClassName }}
  {{- end }}
  {{- if or (eq $v.model.source "download") (and $envoy $native) }}
  initContainers:
    {{- if eq $v.model.source "download" }}
    {{- include "ringfill.downloadContainer" $root | trim | nindent 4 }}
    {{- end }}
    {{- if and $envoy $native }}
    {{- include "ringfill.envoyContainer" $root | trim | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    {{- if $daemon }}
    {{- include "ringfill.daemonContainer" $root | trim | nindent 4 }}
    {{- end }}
    {{- if $v.multinode.enabled }}
    {{- include "ringfill.rankContainer" $root | trim | nindent 4 }}
    {{- end }}
    {{- if and $envoy (not $native) }}
    {{- include "ringfill.envoyContainer" $root | trim | nindent 4 }}
    {{- end }}
  {{- with $v.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $v.topologySpread.enabled }}
  topologySpreadConstraints:
    - topologyKey: {{ $v.topologySpread.topologyKey }}
      maxSkew: {{ $v.topologySpread.maxSkew }}
      whenUnsatisfiable: {{ $v.topologySpread.whenUnsatisfiable }}
      labelSelector:
        {{- include "ringfill.serverSelector" $root | trim | nindent 8 }}
  {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "ringfill.fullname" $root }}
        items: [{key: ringfill.yaml, path: ringfill.yaml}]
    {{- if $envoy }}
    - name: envoy
      configMap:
        name: {{ include "ringfill.fullname" $root }}
        items: [{key: envoy.yaml, path: envoy.yaml}]
    {{- end }}
    - name: tmp
      emptyDir: {sizeLimit: {{ $v.scratchSize }}}
    {{- if $v.multinode.enabled }}
    - name: secret
      secret:
        secretName: {{ $v.multinode.secret.name }}
        # The daemon refuses a secret that others may read; the group is fsGroup.
        defaultMode: 0440
        items: [{key: {{ $v.multinode.secret.key | quote }}, path: secret}]
    {{- end }}
    {{- if gt (int $v.gpu.count) 0 }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ $v.gpu.shmSize }}}
    {{- end }}
    {{- include "ringfill.modelVolume" $root | trim | nindent 4 }}
{{- end }}
